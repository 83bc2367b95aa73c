//! System calls that fail: typed errors or another way, counts that stay exact, and nothing that is lost.

mod support;

use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use prepage_core::PAGE_SIZE;
use prepage_core::policy::Neighbours;
use prepage_sys::call_filter::{When, fail};
use prepage_sys::region::{REGION_ALIGN, try_copy};
use prepage_testing::{Doctor, Need, has, unless_refused};
use prepage_vm::{
    AccessError, FlushError, MakeError, MapError, MapOptions, Mode, Pool, Reason, Vm, VmOptions,
};
use support::{child, file, is_child, left_in, page_bytes, pages, read, touch, until, word, write};

// include/uapi/linux/userfaultfd.h
const COPY: When = When::Is(1, 0xc028_aa03);
const WRITE_PROTECT: When = When::Is(1, 0xc018_aa06);
const CONTINUE: When = When::Is(1, 0xc020_aa07);

/// Does `work` on a thread whose system calls `failing` fail with `errno`; `None` where the machine does not let calls fail.
fn while_failing<T: Send>(errno: i32, failing: &[(i64, When)], work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let denied = |error: &io::Error| error.kind() == ErrorKind::PermissionDenied;
            let filter = fail(errno, failing);
            unless_refused(filter, Need::Path("/proc/sys/kernel/seccomp".into()), denied).map(|()| work())
        });
        thread.join().unwrap()
    })
}

fn is_system(error: &AccessError, errno: i32) -> bool {
    match error {
        AccessError::System(error) => error.raw_os_error() == Some(errno),
        AccessError::Unavailable { reason, .. } => *reason == Reason::System(errno),
        _ => false,
    }
}

#[test]
fn frames_that_the_kernel_does_not_free_stay() {
    const PAGES: u64 = 64;
    let file = file(PAGES * PAGE_SIZE);
    // So large that its own thread has nothing to do.
    let pool = Pool::new(16 * PAGES * PAGE_SIZE).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let object = vm.file(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    for errno in [libc::EPERM, libc::EINTR, libc::ENOMEM, libc::ENOSPC] {
        map.populate(map.window()).unwrap();
        let punch = [(libc::SYS_fallocate, When::Always)];
        let came = while_failing(errno, &punch, || {
            let evicted = object.evict(object.pages()).unwrap_err();
            (evicted, pool.reclaim(PAGES), object.resident_pages(), pool.figures().resident_pages)
        });
        let Some((evicted, reclaimed, resident, held)) = came else { return };
        assert!(is_system(&evicted, errno), "{evicted}");
        assert_eq!((reclaimed, resident, held), (0, PAGES, PAGES));
        let figures = pool.figures();
        assert_eq!((figures.wired_pages + figures.unwired_pages, figures.promised_pages), (PAGES, 0));
        (0..PAGES).for_each(|page| assert_eq!(touch(&map, page), word(page * PAGE_SIZE)));
        // They go once the kernel lets them.
        assert_eq!(pool.reclaim(PAGES / 2), PAGES / 2);
        assert_eq!(object.evict(object.pages()).unwrap(), PAGES / 2);
        assert_eq!((object.resident_pages(), pool.figures().resident_pages), (0, 0));
    }
    drop((object, map));
    assert_eq!(left_in(&vm), (0, 0, 0, 0));
}

/// As in a container that was given the device.
#[test]
fn maps_are_served_by_way_of_the_device_where_the_call_is_refused() {
    let device = "/dev/userfaultfd";
    if !has(Need::Root) || !has(Need::Path(device.into())) {
        return;
    }
    let file = file(16 * PAGE_SIZE);
    let user_only = VmOptions::default().user_mode_only();
    for (options, mode) in [
        (VmOptions::default(), Mode::Inline),
        (VmOptions::default(), Mode::Handler),
        (user_only, Mode::Handler),
    ] {
        let refused = [(libc::SYS_userfaultfd, When::Always)];
        let touched = while_failing(libc::EPERM, &refused, || {
            let vm = Vm::new(options).unwrap();
            let object = vm.file(file.path()).unwrap();
            let map = vm.map(&object, &MapOptions::shared().mode(mode)).unwrap();
            touch(&map, 5)
        });
        assert!(touched.is_none_or(|touched| touched == word(5 * PAGE_SIZE)));
    }
}

#[test]
fn pages_that_cannot_be_mapped_are_an_error_and_come_later() {
    let file = file(16 * PAGE_SIZE);
    let vm = Vm::new(VmOptions::default()).unwrap();
    let object = vm.file(file.path()).unwrap();
    let mut bytes = [0; 8];
    // EFAULT: the kernel found no page, or had no memory for it.
    for (errno, told) in
        [(libc::ENOMEM, libc::ENOMEM), (libc::EFAULT, libc::ENOMEM), (libc::ENOSPC, libc::ENOSPC)]
    {
        let map = vm.map(&object, &MapOptions::shared().every_fault()).unwrap();
        let came = while_failing(errno, &[(libc::SYS_ioctl, CONTINUE)], || {
            [map.populate(map.window()).unwrap_err(), map.read_at(3 * PAGE_SIZE, &mut [0; 8]).unwrap_err()]
        });
        let Some(errors) = came else { return };
        assert!(errors.iter().all(|error| is_system(error, told)), "{errno}: {errors:?}");
        assert_eq!(object.resident_pages(), 16, "they were read");
        map.read_at(3 * PAGE_SIZE, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), word(3 * PAGE_SIZE));
        map.populate(map.window()).unwrap();
    }
    drop(object);
    assert_eq!(left_in(&vm), (0, 0, 0, 0));
}

/// As while a child is forked that keeps the map, and nobody reads of that.
#[test]
fn who_asks_for_pages_of_an_address_space_that_is_being_changed_does_not_wait_for_ever() {
    const NAME: &str = "who_asks_for_pages_of_an_address_space_that_is_being_changed_does_not_wait_for_ever";
    if !is_child(NAME) {
        let child = child(NAME, &["timeout", "60"]);
        assert!(child.status.success(), "{:?} {}", child.status, String::from_utf8_lossy(&child.stderr));
        return;
    }
    let deadline = Duration::from_millis(100);
    let vm = Vm::new(VmOptions::default().read_deadline(deadline)).unwrap();
    let file = file(16 * PAGE_SIZE);
    let (frames, zeros) = (vm.file(file.path()).unwrap(), vm.anonymous(16 * PAGE_SIZE).unwrap());
    for (object, call) in [(frames, CONTINUE), (zeros, COPY)] {
        let map = vm.map(&object, &MapOptions::private().every_fault()).unwrap();
        let mut errors = Vec::new();
        // On a busy machine the read itself may come too late.
        for _ in 0..5 {
            let came = while_failing(libc::EAGAIN, &[(libc::SYS_ioctl, call)], || {
                vec![
                    map.populate(map.window()).unwrap_err(),
                    map.read_at(3 * PAGE_SIZE, &mut [0; 8]).unwrap_err(),
                    map.pin(pages(5, 7)).unwrap_err(),
                ]
            });
            let Some(came) = came else { return };
            errors = came;
            if errors.iter().all(|error| is_system(error, libc::EAGAIN)) {
                break;
            }
        }
        assert!(errors.iter().all(|error| is_system(error, libc::EAGAIN)), "{errors:?}");
        support::until(|| map.populate(map.window()).is_ok());
        assert_eq!(touch(&map, 3) != 0, object.resident_pages() > 0);
        drop(map.pin(pages(5, 7)).unwrap());
    }
}

#[test]
fn a_frame_that_cannot_be_made_and_mapped_by_one_call_is_written_first() {
    let file = file(16 * PAGE_SIZE);
    let vm = Vm::new(VmOptions::default()).unwrap();
    let object = vm.file(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::shared().policy("none".parse().unwrap())).unwrap();
    for (page, errno) in (0..).zip([libc::ENOMEM, libc::EAGAIN, libc::EFAULT, libc::ENOSPC, libc::EEXIST]) {
        let came = while_failing(errno, &[(libc::SYS_ioctl, COPY)], || touch(&map, page));
        assert!(came.is_none_or(|came| came == word(page * PAGE_SIZE)), "{errno}");
    }
}

#[test]
fn a_handler_makes_and_maps_a_frame_by_one_call() {
    // File systems that say what is in the page cache.
    if !has(Need::Eviction(std::env::temp_dir())) {
        return;
    }
    let file = file(16 * PAGE_SIZE);
    let came = while_failing(libc::ENOSPC, &[(libc::SYS_pwrite64, When::Always)], || {
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.file(file.path()).unwrap();
        let options = MapOptions::shared().mode(Mode::Handler).policy("none".parse().unwrap());
        let need = Need::Doctor(Doctor::ServedFaultsInSystemCalls);
        let refused = |error: &MapError| matches!(error, MapError::Userfaultfd(_));
        unless_refused(vm.map(&object, &options), need, refused).map(|map| touch(&map, 5))
    });
    assert!(came.flatten().is_none_or(|came| came == word(5 * PAGE_SIZE)));
}

#[test]
fn frames_that_cannot_be_written_are_given_back() {
    let file = file(16 * PAGE_SIZE);
    let vm = Vm::new(VmOptions::default()).unwrap();
    let object = vm.file(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    let came = while_failing(libc::ENOSPC, &[(libc::SYS_pwrite64, When::Always)], || {
        map.populate(map.window()).unwrap_err()
    });
    let Some(error) = came else { return };
    assert!(is_system(&error, libc::ENOSPC), "{error}");
    assert_eq!((object.resident_pages(), support::frames(&vm)), (0, 0));
    map.populate(map.window()).unwrap();
    assert_eq!(map.as_slice()[5 * 4096..6 * 4096], page_bytes(5));
}

#[test]
fn pages_that_cannot_be_protected_stay_dirty() {
    let file = file(16 * PAGE_SIZE);
    let vm = Vm::new(VmOptions::default().write_back_after(Duration::from_secs(1 << 20))).unwrap();
    let object = vm.file_writable(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::writable()).unwrap();
    for (value, errno) in (1..).zip([libc::ENOMEM, libc::EAGAIN, libc::EFAULT]) {
        map.write_at(3 * PAGE_SIZE, &[value; 2 * PAGE_SIZE as usize]).unwrap();
        let came = while_failing(errno, &[(libc::SYS_ioctl, WRITE_PROTECT)], || {
            (object.flush(object.pages()).unwrap_err(), object.evict(object.pages()).unwrap())
        });
        let Some((flushed, evicted)) = came else { return };
        let told = matches!(&flushed, FlushError::System(error) if error.raw_os_error() == Some(errno));
        assert!(told, "{flushed:?}");
        assert_eq!((object.dirty_pages(), evicted), (2, 0), "{errno}");
        object.flush(object.pages()).unwrap();
        let mut bytes = [0];
        file.as_file().read_exact_at(&mut bytes, 4 * PAGE_SIZE).unwrap();
        assert_eq!((object.dirty_pages(), bytes), (0, [value]));
    }
}

/// Where the processor tells that a page was there.
#[cfg(target_arch = "x86_64")]
#[test]
fn first_writes_after_a_snapshot_do_not_look_into_the_page_table() {
    let vm = Vm::new(VmOptions::default()).unwrap();
    let zeros = vm.anonymous(64 * PAGE_SIZE).unwrap();
    let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
    (0..64).for_each(|page| write(&mut map, page, 1));
    let snapshot = map.snapshot().unwrap();
    let look = [(libc::SYS_pread64, When::Always)];
    let written = while_failing(libc::EIO, &look, || (0..64).for_each(|page| write(&mut map, page, 2)));
    if written.is_some() {
        assert!((0..64).all(|page| read(&map, page) == 2));
        let clone = vm.map(&snapshot, &MapOptions::private()).unwrap();
        assert!((0..64).all(|page| read(&clone, page) == 1));
    }
}

#[test]
fn pages_that_cannot_be_unmapped_stay_wired() {
    let file = file(64 * PAGE_SIZE);
    let vm = Vm::new(VmOptions::default()).unwrap();
    let object = vm.file(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::shared().every_fault()).unwrap();
    map.populate(map.window()).unwrap();
    let both = [libc::SYS_madvise, libc::SYS_process_madvise].map(|call| (call, When::Always));
    let unwire = || object.unwire(object.pages());
    let Some(refused) = while_failing(libc::ENOMEM, &both, unwire) else { return };
    assert!(is_system(&refused.unwrap_err(), libc::ENOMEM));
    assert_eq!(vm.statistics().counted.pages_unwired, 0);
    assert!(object.is_wired(pages(5, 6).start()));
    // Ranges one by one, where the kernel takes no list of them.
    let scattered = |page: u64| object.unwire(pages(page, page + 1)).unwrap();
    assert_eq!((0..64).step_by(2).map(scattered).sum::<u64>(), 32);
    let list = [(libc::SYS_process_madvise, When::Always)];
    assert_eq!(while_failing(libc::ENOSYS, &list, unwire).unwrap().unwrap(), 32);
    (0..64).for_each(|page| assert_eq!(touch(&map, page), word(page * PAGE_SIZE)));
}

#[test]
fn a_handler_that_cannot_map_a_page_says_so_to_who_touches_it() {
    let file = file(16 * PAGE_SIZE);
    let came = while_failing(libc::ENOMEM, &[(libc::SYS_ioctl, CONTINUE)], || {
        // Its threads are those of this one.
        let vm = Vm::new(VmOptions::default().explain(false)).unwrap();
        let object = vm.file(file.path()).unwrap();
        // All pages come by one read: the kernel would map them by itself from then on. One is mapped, so not by the call that makes frames.
        let options = MapOptions::shared().mode(Mode::Handler).every_fault();
        let map = vm.map(&object, &options.neighbours(Neighbours::Block(1)));
        let need = Need::Doctor(Doctor::ServedFaultsInSystemCalls);
        let map = unless_refused(map, need, |error| matches!(error, MapError::Userfaultfd(_)))?;
        let copied = try_copy(map.address() + 3 * PAGE_SIZE, &mut [0; 8]).unwrap();
        let failures: Vec<_> =
            vm.take_failures().into_iter().map(|failure| (failure.page.0, failure.reason)).collect();
        Some((copied, failures))
    });
    let Some(Some((copied, failures))) = came else { return };
    assert_eq!((copied, failures), (0, vec![(3, Reason::System(libc::ENOMEM))]));
}

#[test]
fn a_vm_that_gets_no_memory_leaves_no_thread() {
    const NAME: &str = "a_vm_that_gets_no_memory_leaves_no_thread";
    if !is_child(NAME) {
        let child = child(NAME, &[]);
        assert!(child.status.success(), "{:?} {}", child.status, String::from_utf8_lossy(&child.stderr));
        return;
    }
    // What is mapped of buffers for reads, and of zeros, before it is cut to its size.
    for len in [(64 << 20) + REGION_ALIGN, 2 * REGION_ALIGN] {
        let refuse = [(libc::SYS_mmap, When::Is(1, len as u32))];
        let Some(made) = while_failing(libc::ENOMEM, &refuse, || Vm::new(VmOptions::default())) else {
            return;
        };
        assert!(matches!(made, Err(MakeError::System { .. })), "{len}: {made:?}");
        let is_of_vm = |thread: io::Result<std::fs::DirEntry>| {
            let name = std::fs::read_to_string(thread.unwrap().path().join("comm"));
            name.is_ok_and(|name| name.starts_with("prepage-"))
        };
        until(|| !std::fs::read_dir("/proc/self/task").unwrap().any(is_of_vm));
    }
}

/// As before Linux 6.3, which knows no memfds that cannot be executed.
#[test]
fn a_kernel_that_is_too_old_is_named() {
    const NOEXEC_SEAL: u32 = 8;
    let file = file(PAGE_SIZE);
    let vm = Vm::new(VmOptions::default()).unwrap();
    let too_old = [(libc::SYS_memfd_create, When::Bits(1, NOEXEC_SEAL))];
    let came = while_failing(libc::EINVAL, &too_old, || {
        [vm.memory(PAGE_SIZE).unwrap_err(), vm.file(file.path()).unwrap_err()]
    });
    for error in came.into_iter().flatten() {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        assert!(cause.as_ref().is_some_and(|cause| cause.contains("Linux 6.6")), "{error}: {cause:?}");
    }
}
