//! Any packet of a client, and any answer of a server.
#![no_main]

use espalier_client::wire::{
    Aspects, Call, ChangesHead, DetailItem, DiffItem, Hello, ReadItem, Reader, ReplyHead, RequestHead, Stat,
    WaitHead, WalkItem, WelcomeFlags,
};

libfuzzer_sys::fuzz_target!(|packet: &[u8]| {
    if let Ok((head, body)) = RequestHead::decode(packet) {
        let _ = Hello::decode(body);
        if let Ok(call) = Call::decode(head.call, body) {
            // What was understood comes back.
            assert_eq!(Call::decode(head.call, &call.encode()), Ok(call.clone()));
        }
    }
    if let Ok((_, body)) = ReplyHead::decode(packet) {
        let _ = WelcomeFlags::decode(body);
        let _ = Stat::decode(&mut Reader::new(body));
        let _ = ReadItem::decode(&mut Reader::new(body));
        let _ = ChangesHead::decode(&mut Reader::new(body));
        let _ = WaitHead::decode(&mut Reader::new(body));
        let asked = Aspects { attributes: true, xattrs: true, target: true, extents: true };
        if let Ok(item) = DetailItem::decode(asked, body) {
            // Lists were checked, so nothing in them is lost or out of order.
            let _ = (item.xattrs.iter().count(), item.extents.1.total());
        }
        let mut entries = Reader::new(body);
        while WalkItem::decode(&mut entries).is_ok() {}
        let mut differences = Reader::new(body);
        while DiffItem::decode(&mut differences).is_ok() {}
    }
});
