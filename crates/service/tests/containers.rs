//! The service and programs of containers: an overlay over an image, in a mount namespace of its own.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};

use prepage_core::profile::{Profile, ProfiledFile};
use prepage_profiles::{Layer, Stores};
use prepage_sys::sync::Anyway;
use prepage_testing::{Need, has};

use support::*;

/// A service sees the containers of all tests, and counts them: one test at a time.
static CONTAINERS: Mutex<()> = Mutex::new(());

/// An image, and the directories that its containers are mounted at.
struct Image {
    place: Place,
    _alone: MutexGuard<'static, ()>,
}

/// A program in a container, which ends with it.
type Container = Running;

impl Image {
    /// With a program of its own, a copy of sleep(1), and what loads it. `None`, and a skip, where this machine does not allow the tests.
    fn new() -> Option<Self> {
        let _alone = CONTAINERS.lock().anyway();
        let place = Place::new()?;
        if !has(Need::Mounts) || !has(Need::Tool("pivot_root".into())) {
            return None;
        }
        let overlays = fs::read_to_string("/proc/filesystems").unwrap();
        if !overlays.lines().any(|line| line.ends_with("\toverlay")) {
            prepage_testing::skip(Need::Path("/sys/module/overlay".into()), "no overlays");
            return None;
        }
        let image = Self { place, _alone };
        fs::create_dir_all(image.below(&image.place.path(""))).unwrap();
        for name in ["merged", "upper", "old", "proc"] {
            fs::create_dir_all(image.below(Path::new(name))).unwrap();
            fs::create_dir_all(image.place.path(name)).unwrap();
        }
        // Libraries, at the paths by which the program's own file names them.
        let loaded = Command::new("ldd").arg("/bin/sleep").output().unwrap();
        for library in
            String::from_utf8(loaded.stdout).unwrap().split_whitespace().filter(|word| word.starts_with('/'))
        {
            let copy = image.below(Path::new(library));
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::copy(library, copy).unwrap();
        }
        let program = image.place.program("known");
        copy(&program, &image.below(&program));
        Some(image)
    }

    /// Where `path` of the image lies.
    fn below(&self, path: &Path) -> PathBuf {
        self.place.path("image").join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The program, as containers have it.
    fn program(&self) -> PathBuf {
        self.place.path("known")
    }

    /// A cold file of the image, and its path in containers.
    fn cold_file(&self, name: &str, mode: u32) -> (PathBuf, PathBuf) {
        let path = self.place.path(name);
        let inside = self.below(&path).strip_prefix(self.place.0.path()).unwrap().to_owned();
        (self.place.cold_file(inside.to_str().unwrap(), mode), path)
    }

    /// Runs `program` in a new container, after `prepare`, a line for the shell: `$M` is where the container's files are then.
    fn run(&self, prepare: &str, program: &Path) -> Container {
        let script = format!(
            "set -e; P={place}; M=$P/merged; mount -t tmpfs none $P/upper; mkdir $P/upper/up $P/upper/work
             mount -t overlay none -o lowerdir=$P/image,upperdir=$P/upper/up,workdir=$P/upper/work $M
             mount -t proc proc $M/proc; {prepare}
             cd $M; pivot_root . old; exec {program} 60",
            place = self.place.0.path().display(),
            program = program.display(),
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", &script]);
        Running(command.stdin(Stdio::null()).spawn().unwrap())
    }

    fn stores(&self) -> Stores {
        Stores::at(self.place.layer().join("containers"))
    }

    /// The only profile that there is of the program.
    fn profile(&self) -> Profile {
        let mut all = self.stores().list(Layer::User).unwrap();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0).1.unwrap()
    }

    /// Has the learned profile name these files, of which each is told by its place in the image and by its path in containers, and be due for no observation.
    fn name_in_profile(&self, files: &[&(PathBuf, PathBuf)]) {
        let mut profile = self.profile();
        let at = self.place.path("as-below");
        let images: Vec<&Path> = files.iter().map(|(image, _)| image.as_path()).collect();
        // As any profile has them, but for their paths.
        self.place.profile_in(&at, &self.program(), &images);
        let mut made = Stores::at(at).list(Layer::User).unwrap();
        let made = made.remove(0).1.unwrap();
        let path =
            |file: &ProfiledFile| files.iter().find(|(image, _)| image == Path::new(&file.path)).unwrap();
        let named = made.files.iter().map(|file| {
            let path = path(file).1.to_str().unwrap().to_owned();
            ProfiledFile { path, ..file.clone() }
        });
        profile.files = named.collect();
        profile.history = made.history;
        write_profile(&self.place.layer().join("containers"), &profile);
    }
}

fn open_files(service: &Prepaged) -> usize {
    fs::read_dir(format!("/proc/{}/fd", service.child.id())).unwrap().count()
}

/// File systems that the kernel tells the service of (proc_pid_fdinfo(5)).
fn marks(service: &Prepaged) -> usize {
    let open = fs::read_dir(format!("/proc/{}/fdinfo", service.child.id())).unwrap().flatten();
    let text = open.filter_map(|one| fs::read_to_string(one.path()).ok()).collect::<String>();
    text.lines().filter(|line| line.starts_with("fanotify sdev:")).count()
}

#[test]
fn a_program_of_an_image_is_learned_in_one_container_and_served_in_others() {
    let Some(image) = Image::new() else { return };
    let cold = image.cold_file("cold", 0o644);
    let service = Prepaged::start(&image.place, &[]);
    service.learn(|| image.run("", &image.program()));
    let profile = image.profile();
    let program = image.program();
    assert!(
        profile.program.starts_with("container:") && profile.program.ends_with(program.to_str().unwrap())
    );
    let named: Vec<&str> = profile.files.iter().map(|file| file.path.as_str()).collect();
    assert!(named.contains(&program.to_str().unwrap()), "{named:?}");
    assert!(named.iter().all(|path| !path.contains("/merged/") && !path.contains("/image/")), "{named:?}");
    assert!(image.place.stores().list(Layer::Machine).unwrap().is_empty(), "it is no program of the machine");
    image.name_in_profile(&[&cold]);
    chill(&cold.0);
    let fetched = service.count("fetched");
    service.wait_until("it is fetched", || {
        let _container = image.run("", &program);
        is_so_in_time_of(20, || pages_in_memory(&cold.0) >= 3)
    });
    // Its pages come first.
    service.wait_until("it is told", || {
        let starts = service.status()["last_starts"].clone();
        let is_told =
            |start: &serde_json::Value| start["done"] == "fetched" && start["program"] == *profile.program;
        starts.as_array().unwrap().iter().any(is_told)
    });
    assert!(service.count("fetched") > fetched && service.count("in_containers") >= 2);
    assert_eq!(service.status()["container_profiles"], 1);
    image.profile();
    // Nothing of a container is kept once it has ended.
    let before = (open_files(&service), marks(&service));
    for _ in 0..2 {
        chill(&cold.0);
        let _container = image.run("", &program);
        is_so_in_time_of(20, || pages_in_memory(&cold.0) >= 3);
    }
    service.wait_until("nothing is kept", || open_files(&service) <= before.0 && marks(&service) <= before.1);
}

/// Whoever is root in a container puts there what they like.
#[test]
fn what_a_container_puts_in_the_place_of_a_file_is_not_read_and_holds_up_nobody() {
    let Some(image) = Image::new() else { return };
    let names = ["good", "link", "magic", "bound", "pipe"];
    let [good, link, magic, bound, pipe] = names.map(|name| image.cold_file(name, 0o644));
    let private = image.cold_file("private", 0o600);
    // What they hold themselves.
    let outside = image.place.cold_file("outside", 0o644);
    let service = Prepaged::start(&image.place, &[]);
    service.learn(|| image.run("", &image.program()));
    // Of each second read of a profile is looked whether it is in memory.
    image.name_in_profile(&[&good, &link, &magic, &bound, &pipe, &private]);
    let prepare = format!(
        "cd $M/$P; rm link magic pipe; ln -s /old/{outside} link; ln -s /proc/1/root/old/{outside} magic
         mount --bind {outside} bound; mkfifo pipe",
        outside = outside.display()
    );
    [&good, &private].iter().for_each(|file| chill(&file.0));
    chill(&outside);
    service.wait_until("it is fetched", || {
        let _container = image.run(&prepare, &image.program());
        is_so_in_time_of(20, || pages_in_memory(&good.0) >= 3)
    });
    assert_eq!((pages_in_memory(&outside), pages_in_memory(&private.0)), (0, 0));
    assert_eq!(service.status()["hanging_threads"], 0);
    service.wait_until("it looks at the machine's own programs", || {
        let before = service.count("starts");
        let _running = Running::start(&image.program());
        is_so_in_time_of(20, || service.count("starts") > before)
    });
}

/// An image's script that belongs to the user that the container runs as, called by its health check again and again.
#[test]
fn what_may_not_be_kept_of_a_container_is_not_observed() {
    let Some(image) = Image::new() else { return };
    std::os::unix::fs::chown(image.below(&image.program()), Some(54321), None).unwrap();
    let service = Prepaged::start(&image.place, &[]);
    let start = |_| {
        let before = service.count("unknown");
        let container = image.run("", &image.program());
        service.wait_until("it is looked at", || service.count("unknown") > before);
        container
    };
    let containers: Vec<_> = (0..3).map(start).collect();
    // Long enough for an observation to begin; it ends with its program, and is counted then.
    std::thread::sleep(std::time::Duration::from_secs(1));
    drop(containers);
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(["observed", "not_kept"].map(|count| service.count(count)), [0, 0]);
}

/// Most services of systemd have a mount namespace of their own.
#[test]
fn a_sandbox_with_the_machines_root_has_the_machines_profiles_and_what_cannot_be_served_is_counted() {
    let Some(image) = Image::new() else { return };
    let program = image.program();
    let file = image.place.cold_file("file", 0o644);
    image.place.profile(&program, &[&file]);
    let service = Prepaged::start(&image.place, &["--no-learn"]);
    service.wait_until("it is fetched", || {
        let _running =
            Running(Command::new("unshare").arg("--mount").arg(&program).arg("60").spawn().unwrap());
        is_so_in_time_of(20, || pages_in_memory(&file) >= 3)
    });
    assert_eq!((service.count("in_containers"), service.count("elsewhere")), (0, 0));
    let volume = image.place.path("volume");
    fs::create_dir_all(image.below(&volume)).unwrap();
    fs::create_dir(&volume).unwrap();
    copy(&program, &volume);
    service.wait_until("it is counted", || {
        let _container = image.run("mount --bind $P/volume $M/$P/volume", &volume.join("known"));
        is_so_in_time_of(20, || service.count("elsewhere_mount") > 0)
    });
    // The one is counted a moment before the other.
    let is_all = || service.count("elsewhere") == service.count("elsewhere_mount");
    service.wait_until("no other is counted", is_all);
}

#[test]
fn two_thousand_mount_namespaces_leave_nothing_behind() {
    const NAMESPACES: usize = 2_000;
    let Some(image) = Image::new() else { return };
    let program = image.place.path("short");
    copy(Path::new("/bin/true"), &image.below(&program));
    let service = Prepaged::start(&image.place, &["--no-learn"]);
    let before =
        (open_files(&service), marks(&service), service.status()["resident_bytes"].as_u64().unwrap());
    let script = format!(
        "P={place}; mount -t overlay none -o lowerdir=$P/image:$P/upper $P/merged
         for half in 1 2; do
           (i=0; while [ $i -lt {half} ]; do unshare --mount --root=$P/merged {program}; i=$((i+1)); done) &
         done; wait",
        place = image.place.0.path().display(),
        half = NAMESPACES / 2,
        program = program.display(),
    );
    quiet(Command::new("unshare").args(["--mount", "sh", "-c", &script]));
    service.wait_until("they are looked at", || service.count("execs") > 0);
    let is_over = || open_files(&service) <= before.0 && marks(&service) <= before.1;
    service.wait_until("nothing is kept", is_over);
    let after = service.status()["resident_bytes"].as_u64().unwrap();
    assert!(after < before.2 + (8 << 20), "{} bytes before, {after} after", before.2);
}

/// Whether `is` comes to be so within so many tenths of a second.
fn is_so_in_time_of(tenths: u32, mut is: impl FnMut() -> bool) -> bool {
    (0..10 * tenths).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        is()
    })
}
