//! Names for places in code, from the symbol tables of the files they are in.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use object::read::ReadCache;
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, SymbolKind};
use prepage_core::{BuildId, CodePlace, Object, ObjectId};
use prepage_sys::regular_file;
use rustc_hash::FxHashMap;

/// Where distributions put the symbols that they take out of programs.
const DEBUG_DIRECTORY: &str = "/usr/lib/debug/.build-id";

/// The names of places in code.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    names: FxHashMap<CodePlace, String>,
    replaced: Vec<String>,
}

impl Symbols {
    /// Looks up all of `places`, reading each file of `objects` among them once. Files that cannot be read have no names;
    /// nor have files that are not, or not known to be, the recorded ones: by build-id or, where none was recorded, by inode and
    /// length.
    pub fn of(objects: &[Object], places: impl Iterator<Item = CodePlace>) -> Self {
        let mut by_object: BTreeMap<ObjectId, Vec<u64>> = BTreeMap::new();
        for place in places {
            if let Some(id) = place.object {
                by_object.entry(id).or_default().push(place.offset);
            }
        }
        let mut by_path: FxHashMap<&str, Vec<&Object>> = FxHashMap::default();
        objects.iter().for_each(|object| by_path.entry(&object.path).or_default().push(object));
        let mut symbols = Self::default();
        for (id, mut offsets) in by_object {
            let object = &objects[id.0 as usize];
            if !object.is_file() {
                continue;
            }
            offsets.sort_unstable();
            offsets.dedup();
            // Traces name code by its path alone.
            let functions = match by_path[&*object.path].iter().all(|other| is_same_build(other, object)) {
                true => Functions::of(object),
                false => Err(Unusable::Replaced),
            };
            match functions {
                Ok(functions) => symbols.names.extend(offsets.into_iter().filter_map(|offset| {
                    let name = functions.at(offset)?;
                    Some((CodePlace { object: Some(id), offset }, demangled(name)))
                })),
                Err(Unusable::Replaced) => symbols.replaced.push(object.path.clone()),
                Err(Unusable::Unreadable) => {}
            }
        }
        symbols
    }

    /// The name of the function that `place` is in.
    pub fn name(&self, place: CodePlace) -> Option<&str> {
        self.names.get(&place).map(String::as_str)
    }

    /// Files that are not, or not known to be, those recorded, so that their symbols may be wrong.
    pub fn replaced(&self) -> &[String] {
        &self.replaced
    }
}

/// Where to look for the names of a stack's functions, the leaf first. A caller's place is where it goes on: behind a call that never returns
/// another function may begin there.
pub fn places_of_calls(stack: &[CodePlace]) -> impl Iterator<Item = CodePlace> {
    stack.iter().enumerate().map(|(depth, place)| match depth {
        0 => *place,
        _ => CodePlace { offset: place.offset.saturating_sub(1), ..*place },
    })
}

/// Whether two objects of one path are the same file, or files of the same build.
fn is_same_build(one: &Object, other: &Object) -> bool {
    one.inode == other.inode || (one.build_id.is_some() && one.build_id == other.build_id)
}

/// What a function is called when its name is not known: the file it is in.
pub fn nameless(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    if name.starts_with('[') { name.to_owned() } else { format!("[{name}]") }
}

enum Unusable {
    /// The file is not, or not known to be, the recorded one.
    Replaced,
    /// The file cannot be opened, or is not an ELF file.
    Unreadable,
}

/// The functions of an ELF file.
struct Functions {
    /// Start in the file, bytes in the file, address.
    segments: Vec<(u64, u64, u64)>,
    /// One for each address, in their order.
    functions: Vec<Function>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Function {
    address: u64,
    bytes: u64,
    name: Vec<u8>,
    is_local: bool,
    is_weak: bool,
}

impl Function {
    /// How little its name says, among several at one address: names of the file's own inside, then those that begin
    /// with underscores, are for its authors; programs call the others.
    fn obscurity(&self) -> (bool, bool, usize, bool, usize, &[u8]) {
        let underscores = self.name.iter().take_while(|letter| **letter == b'_').count();
        // Mangled names begin with one that means nothing.
        let underscores =
            if self.name.starts_with(b"_Z") || self.name.starts_with(b"_R") { 0 } else { underscores };
        (self.bytes == 0, self.is_local, underscores, self.is_weak, self.name.len(), &self.name)
    }
}

/// The best-named function of each address, by address.
fn one_an_address(mut functions: Vec<Function>) -> Vec<Function> {
    functions.sort_unstable_by(|a, b| (a.address, a.obscurity()).cmp(&(b.address, b.obscurity())));
    functions.dedup_by_key(|function| function.address);
    functions
}

impl Functions {
    fn of(object: &Object) -> Result<Self, Unusable> {
        let mut functions = Self { segments: Vec::new(), functions: Vec::new() };
        let opened = regular_file::open(object.path.as_ref());
        let (file, metadata) = opened.map_err(|_| Unusable::Unreadable)?;
        let found = functions.read(file, object.build_id, true)?;
        // The device is not compared: stacked file systems show another one here than in the kernel's events.
        let is_recorded = object.inode.is_some_and(|(_, inode)| inode == metadata.ino())
            && object.size_bytes.is_none_or(|bytes| bytes == metadata.len());
        if object.build_id.is_none() && !is_recorded {
            return Err(Unusable::Replaced);
        }
        let separate = found.and_then(|id| separate_symbols(&id));
        if let Some((file, _)) = separate.and_then(|path| regular_file::open(&path).ok()) {
            // A damaged one is no reason to do without the file's own symbols.
            let _ = functions.read(file, found, false);
        }
        functions.functions = one_an_address(functions.functions);
        Ok(functions)
    }

    fn read(
        &mut self,
        file: File,
        recorded: Option<BuildId>,
        with_segments: bool,
    ) -> Result<Option<BuildId>, Unusable> {
        let cache = ReadCache::new(file);
        let elf = object::File::parse(&cache).map_err(|_| Unusable::Unreadable)?;
        let found = elf.build_id().ok().flatten().and_then(BuildId::new);
        if recorded.is_some() && recorded != found {
            return Err(Unusable::Replaced);
        }
        if with_segments {
            self.segments = elf
                .segments()
                .map(|segment| {
                    let (start, bytes) = segment.file_range();
                    (start, bytes, segment.address())
                })
                .collect();
        }
        let symbols = elf.symbols().chain(elf.dynamic_symbols());
        let functions = symbols.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition());
        self.functions.extend(functions.filter_map(|symbol| {
            let name = symbol.name_bytes().ok().filter(|name| !name.is_empty())?;
            Some(Function {
                address: symbol.address(),
                bytes: symbol.size(),
                name: name.to_vec(),
                is_local: symbol.is_local(),
                is_weak: symbol.is_weak(),
            })
        }));
        Ok(found)
    }

    fn at(&self, offset: u64) -> Option<&[u8]> {
        let within = |&&(start, bytes, _): &&(u64, u64, u64)| offset >= start && offset - start < bytes;
        let (start, _, address) = self.segments.iter().find(within)?;
        let address = offset - start + address;
        let after = self.functions.partition_point(|function| function.address <= address);
        let Function { address: start, bytes, name, .. } = self.functions.get(after.checked_sub(1)?)?;
        // Functions written in assembler often have no length.
        (*bytes == 0 || address - start < *bytes).then_some(name)
    }
}

fn separate_symbols(id: &BuildId) -> Option<PathBuf> {
    let text = id.to_string();
    let (directory, file) = text.split_at_checked(2)?;
    Some(PathBuf::from(format!("{DEBUG_DIRECTORY}/{directory}/{file}.debug")))
}

fn demangled(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    if let Ok(rust) = rustc_demangle::try_demangle(&text) {
        return format!("{rust:#}");
    }
    let cpp = text.starts_with("_Z").then(|| cpp_demangle::Symbol::new(text.as_bytes()).ok()).flatten();
    cpp.and_then(|symbol| symbol.demangle().ok()).unwrap_or_else(|| text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function to be found.
    #[inline(never)]
    fn landmark() -> u64 {
        std::hint::black_box(7)
    }

    /// The file this test is in, and where in it a function of its own starts.
    fn own_file() -> (Object, u64) {
        assert_eq!(landmark(), 7);
        let path = std::env::current_exe().expect("a path");
        let data = std::fs::read(&path).expect("readable");
        let elf = object::File::parse(data.as_slice()).expect("ELF");
        let symbol = elf
            .symbols()
            .find(|symbol| symbol.name().is_ok_and(|name| name.contains("landmark")))
            .expect("a test binary has its symbols");
        let within = |segment: &object::Segment| {
            (segment.address()..segment.address() + segment.size()).contains(&symbol.address())
        };
        let segment = elf.segments().find(within).expect("a segment");
        let offset = symbol.address() - segment.address() + segment.file_range().0;
        let build_id = elf.build_id().expect("ELF").and_then(BuildId::new);
        (Object { path: path.display().to_string(), inode: Some((1, 1)), build_id, size_bytes: None }, offset)
    }

    /// A call that never returns may be the last instruction of its function.
    #[test]
    fn callers_are_looked_up_where_they_call_and_not_where_they_would_go_on() {
        let place = |offset| CodePlace { object: Some(ObjectId(0)), offset };
        let found: Vec<_> = places_of_calls(&[place(16), place(32), place(0)]).collect();
        assert_eq!(found, [place(16), place(31), place(0)]);
    }

    #[test]
    fn a_function_is_named_at_its_first_and_at_a_later_byte() {
        let (object, offset) = own_file();
        let place = |offset| CodePlace { object: Some(ObjectId(0)), offset };
        let places = [place(offset), place(offset + 8), place(1)];
        let symbols = Symbols::of(&[object], places.into_iter());
        for place in &places[..2] {
            assert_eq!(symbols.name(*place), Some("prepage_report::symbols::tests::landmark"));
        }
        assert_eq!(symbols.name(places[2]), None);
    }

    #[test]
    fn symbols_of_another_build_are_not_used() {
        let (object, offset) = own_file();
        let other = Object { build_id: BuildId::new(&[1; 20]), ..object };
        let place = CodePlace { object: Some(ObjectId(0)), offset };
        let symbols = Symbols::of(std::slice::from_ref(&other), [place].into_iter());
        assert_eq!((symbols.name(place), symbols.replaced()), (None, [other.path].as_slice()));
    }

    #[test]
    fn without_a_build_id_the_inode_says_whether_it_is_the_file() {
        let (object, offset) = own_file();
        let metadata = std::fs::metadata(&object.path).expect("this program");
        let (inode, size_bytes) = (Some((0, metadata.ino())), Some(metadata.len()));
        let same = Object { build_id: None, inode, size_bytes, ..object.clone() };
        let other = Object { inode: Some((0, metadata.ino() + 1)), ..same.clone() };
        let longer = Object { size_bytes: Some(metadata.len() + 1), ..same.clone() };
        let place = |id| CodePlace { object: Some(ObjectId(id)), offset };
        let named = |objects: &[Object]| {
            let symbols = Symbols::of(objects, [place(0)].into_iter());
            (symbols.name(place(0)).is_some(), symbols.replaced().len())
        };
        assert_eq!(
            [named(std::slice::from_ref(&same)), named(std::slice::from_ref(&other)), named(&[longer])],
            [(true, 0), (false, 1), (false, 1)]
        );
        // Code is named by its path alone: of two files it may be either's.
        assert_eq!(named(&[same, other]), (false, 1));
        let twins = [object.clone(), Object { inode: Some((1, 2)), ..object }];
        assert_eq!(named(&twins), (true, 0));
    }

    #[test]
    fn what_is_no_program_has_no_names() {
        let objects = [Object::new("/etc/passwd", Some((1, 1))), Object::new("/no/such/file", Some((1, 2)))];
        let places = [0, 1].map(|id| CodePlace { object: Some(ObjectId(id)), offset: 5 });
        let symbols = Symbols::of(&objects, places.into_iter());
        assert!(places.iter().all(|place| symbols.name(*place).is_none()) && symbols.replaced().is_empty());
    }

    #[test]
    fn a_pipe_in_the_place_of_a_program_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let pipe = dir.path().join("program");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).expect("a pipe");
        let object = Object::new(pipe.to_str().expect("plain"), Some((1, 1)));
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(Functions::of(&object).is_err()));
        assert_eq!(is_done.recv_timeout(std::time::Duration::from_secs(60)), Ok(true));
    }

    #[test]
    fn of_aliases_the_name_that_programs_call_is_taken() {
        let function = |name: &str, bytes, is_local, is_weak| Function {
            address: 0x1000,
            bytes,
            name: name.into(),
            is_local,
            is_weak,
        };
        let mut aliases = vec![
            function("__GI___read", 9, true, false),
            function("__libc_read", 9, false, false),
            function("read", 9, false, true),
            function("a_mark", 0, false, false),
            function("zz_inside", 9, true, false),
        ];
        for _ in 0..aliases.len() {
            aliases.rotate_left(1);
            let [best] = one_an_address(aliases.clone()).try_into().expect("one");
            assert_eq!(best.name, b"read");
        }
        aliases.retain(|alias| alias.name != b"read");
        assert_eq!(one_an_address(aliases)[0].name, b"__libc_read");
    }

    #[test]
    fn names_are_demangled() {
        assert_eq!(
            demangled(b"_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"),
            "core::fmt::Write::write_fmt"
        );
        assert_eq!(
            demangled(b"_ZNSt6vectorIiSaIiEE9push_backERKi"),
            "std::vector<int, std::allocator<int> >::push_back(int const&)"
        );
        assert_eq!(demangled(b"main"), "main");
    }
}
