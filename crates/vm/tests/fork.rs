//! A child of fork(2) does not inherit maps, and is told so loudly.
//!
//! Alone in its process: no other thread may be in the middle of anything when it forks.

mod support;

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

use prepage_vm::{Map, MapOptions};
use support::{Words, modes, touch, vm, word};

#[test]
fn a_child_does_not_inherit_maps() {
    let vm = vm();
    let object = vm.source("words", Words { len_bytes: 4 * 4096, ..Default::default() }).unwrap();
    for mode in modes(&vm, &object) {
        let map = vm.map(&object, &MapOptions::shared().mode(mode)).unwrap();
        assert_eq!(touch(&map, 0), word(0));
        let zeros = vm.anonymous(4 << 20).unwrap();
        let mut huge = vm.map(&zeros, &MapOptions::private().mode(mode).huge_pages()).unwrap();
        huge.as_mut_slice()[0] = 1;
        for map in [&map, &huge] {
            die_at_touch(map);
        }
    }
}

fn die_at_touch(map: &Map) {
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    prepage_sys::beside::run_beside_with(vec![theirs.into()], |mut kept| {
        let theirs = File::from(kept.pop().expect("given"));
        let _ = rustix::io::write(theirs.as_fd(), b"a");
        // Mapped in the parent: the child must neither see it nor zeros.
        let seen = touch(map, 0);
        let _ = rustix::io::write(theirs.as_fd(), &seen.to_le_bytes());
    })
    .unwrap();
    let mut said = Vec::new();
    ours.read_to_end(&mut said).unwrap();
    assert_eq!(said, b"a", "the child died at its touch");
}
