_clap_complete_NAME() {
    # Bash ends words at `=` and `:`, which are parts of ours: they are put together again, up to
    # the cursor. Bash replaces the last part only, so the offers lose what stands before it.
    local line=${COMP_LINE:0:COMP_POINT} breaks=${COMP_WORDBREAKS//[^=:]/} words=() part= i last next
    for ((i = 0; i <= COMP_CWORD; i++)); do
        next=${line#"${line%%[![:space:]]*}"}
        last=$part part=${COMP_WORDS[i]}
        ((i < COMP_CWORD)) || part=$next
        if ((i)) && [[ $next == "$line" && $breaks && $last$'\n'$part =~ [$breaks]$'\n'|$'\n'[$breaks] ]]; then
            words[${#words[@]}-1]+=$part
        else
            words+=("$part")
        fi
        line=${next#"$part"}
    done
    local index=$((${#words[@]} - 1))
    [[ ! $breaks || ! $part =~ ^[$breaks]+$ ]] || part=
    local before=${words[index]%"$part"} quote=
    # Offers go between the quotes that the line has begun.
    [[ $part != [\'\"]* ]] || quote=${part:0:1}
    for ((i = 0; i <= index; i++)); do
        case ${words[i]} in
            \'*) words[i]=${words[i]//\'/} ;;
            \"*) words[i]=${words[i]//\"/} ;;
            *) words[i]=${words[i]//\\/} ;;
        esac
    done
    before=${before//\\/}
    local offers offer
    offers=$(_CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=$index _CLAP_COMPLETE_COMP_TYPE=$COMP_TYPE \
        VAR=bash COMPLETER -- "${words[@]}" 2>/dev/null) || return
    COMPREPLY=()
    while IFS= read -r offer; do
        [[ $offer ]] || continue
        offer=${offer#"$before"}
        if [[ ! $quote && $offer =~ [^[:alnum:]_@%+=:,./-] ]]; then
            printf -v offer %q "$offer"
            offer=${offer//\\,/,}
        elif [[ $quote == '"' ]]; then
            # Names may be foreign, and bash looks for commands between these quotes.
            offer=${offer//\\/\\\\} offer=${offer//\"/\\\"} offer=${offer//\$/\\\$} offer=${offer//\`/\\\`}
        elif [[ $quote ]]; then
            offer=${offer//\'/\'\\\'\'}
        fi
        COMPREPLY+=("$offer")
    done <<<"$offers"
    # A word that goes on gets no space.
    if ((${#COMPREPLY[@]} == 1)) && [[ ${COMPREPLY[0]} =~ [=/:]$ ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -o bashdefault -o nosort -F _clap_complete_NAME BIN 2>/dev/null ||
    complete -o bashdefault -F _clap_complete_NAME BIN
