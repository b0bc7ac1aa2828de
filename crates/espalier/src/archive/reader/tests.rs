use super::*;

/// An archive that is not refused ends after so many bytes.
const ARCHIVE_BYTES: usize = 3 * MAX_WAITING_BYTES;

/// Headers of one kind, each with `value` bytes under another name, and how many bytes were read.
struct Headers {
    kind: u8,
    value: usize,
    ready: Vec<u8>,
    made: usize,
    read: usize,
}

impl Headers {
    fn new(kind: u8, value: usize) -> Self {
        Self { kind, value, ready: Vec::new(), made: 0, read: 0 }
    }

    fn next(&mut self) -> Vec<u8> {
        self.made += 1;
        let mut records = Vec::new();
        match self.kind {
            b'x' | b'g' => {
                pax::push(&mut records, format!("a{}", self.made).as_bytes(), &vec![7; self.value])
            }
            _ => records.resize(self.value, b'n'),
        }
        let mut header = [0; BLOCK_BYTES];
        header[156] = self.kind;
        let _ = numbers::put(&mut header[124..136], records.len() as u64);
        header[148..156].fill(b' ');
        let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
        let _ = numbers::put(&mut header[148..155], sum);
        records.resize(records.len().next_multiple_of(BLOCK_BYTES), 0);
        [&header[..], &records].concat()
    }
}

impl Read for Headers {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        // The archive ends some time.
        if self.ready.is_empty() && self.read < ARCHIVE_BYTES {
            self.ready = self.next();
        }
        let length = out.len().min(self.ready.len());
        out[..length].copy_from_slice(&self.ready[..length]);
        self.ready.drain(..length);
        self.read += length;
        Ok(length)
    }
}

fn read_all(headers: &mut Headers) -> String {
    let mut reader = Reader::new(headers);
    let mut extensions = Extensions::default();
    loop {
        if let Err(error) = reader.next(&mut extensions).and_then(|_| reader.skip()) {
            return error.to_string();
        }
    }
}

#[test]
fn headers_without_end_are_refused() {
    for kind in [b'x', b'g'] {
        for value in [400, 3000, 3 << 20] {
            let mut headers = Headers::new(kind, value);
            let told = read_all(&mut headers);
            assert!(told.contains("are kept"), "{told}");
            assert!(headers.read < ARCHIVE_BYTES, "{}", headers.read);
        }
    }
}

#[test]
fn what_a_later_header_replaces_is_not_kept() {
    for kind in [b'L', b'K'] {
        let mut headers = Headers::new(kind, 7 << 20);
        let told = read_all(&mut headers);
        assert!(told.contains("cut off") && headers.read >= ARCHIVE_BYTES, "{told}");
    }
    let mut records = KeptRecords::default();
    for length in (0..100).chain((0..100).rev()) {
        records.put(b"path", &vec![b'p'; length]);
        records.put(b"SCHILY.xattr.user.a", &vec![b'x'; length]);
    }
    assert_eq!((records.all.len(), records.bytes), (1, 19 + size_of::<(Vec<u8>, Vec<u8>)>()));
}
