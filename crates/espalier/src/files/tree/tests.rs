use super::*;

/// A file of 100 bytes whose content lies in these ranges.
struct Told(Vec<Range<u64>>);

impl OpenFile for Told {
    fn size(&self) -> u64 {
        100
    }

    fn extents(&self) -> FilesResult<Vec<Range<u64>>> {
        Ok(self.0.clone())
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> FilesResult<usize> {
        Ok(0)
    }
}

fn told(extents: &[(u64, u64)]) -> FilesResult<Vec<Range<u64>>> {
    extents_of(&Told(extents.iter().map(|&(start, end)| start..end).collect()))
}

#[test]
fn extents_that_no_file_has_are_refused() {
    for extents in [&[][..], &[(0, 100)], &[(0, 10), (10, 20), (30, 100)]] {
        assert_eq!(told(extents).unwrap().len(), extents.len());
    }
    for extents in [&[(0, 101)][..], &[(0, 20), (10, 30)], &[(50, 60), (0, 10)], &[(20, 10)], &[(0, 1 << 60)]]
    {
        assert_eq!(told(extents).unwrap_err().kind(), FsErrorKind::Io, "{extents:?}");
    }
}

#[test]
fn what_is_shown_stays_on_its_line() {
    let name = b"a\nLOST\t/etc\t\x1b[2J\xff\x07 'b' \"c\" \\";
    let shown = "a\\nLOST\\t/etc\\t\\u{1b}[2J\u{fffd}\\u{7} 'b' \"c\" \\\\";
    assert_eq!(show(name), shown);
    // What was shown before stays as it is.
    assert_eq!(show_text(shown), shown);
    assert_eq!(show_text("/a\nLOST\r\u{9b}2J\u{202e} \u{e4}"), "/a\\nLOST\\r\\u{9b}2J\\u{202e} \u{e4}");
}
