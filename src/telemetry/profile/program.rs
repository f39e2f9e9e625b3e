//! What a process runs: where its program and libraries are in memory, how their stacks are unwound, and what their functions are called.
//!
//! Guarantees: reads of each file its tables for unwinding, and its names only once they are asked for; a file that cannot be
//! read, or is none, is a range without names, in which a stack is followed by its frame pointers.
//! Leaves out: inlined functions, which are seen as the function that they are in.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;

use framehop::{
    CacheNative, ExplicitModuleSectionInfo, FrameAddress, MayAllocateDuringUnwind, Module,
    UnwindRegsNative, Unwinder as _, UnwinderNative,
};
use object::SegmentFlags;
use object::elf::PF_X;
use object::read::{
    Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _, ReadCache,
};

/// The most frames of a stack that are kept, the innermost.
const DEEPEST: usize = 128;

/// Where a thread is: what unwinding begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers {
    pub(super) instruction: u64,
    pub(super) stack: u64,
    pub(super) frame: u64,
    /// What the function returns to; where the processor has a register for it.
    #[cfg(target_arch = "aarch64")]
    pub(super) link: u64,
}

#[cfg(target_arch = "x86_64")]
pub(super) fn registers(of: &nix::libc::user_regs_struct) -> Registers {
    Registers { instruction: of.rip, stack: of.rsp, frame: of.rbp }
}

#[cfg(target_arch = "aarch64")]
pub(super) fn registers(of: &nix::libc::user_regs_struct) -> Registers {
    let [.., frame, link] = of.regs;
    Registers { instruction: of.pc, stack: of.sp, frame, link }
}

impl Registers {
    #[cfg(target_arch = "x86_64")]
    fn native(&self) -> UnwindRegsNative {
        UnwindRegsNative::new(self.instruction, self.stack, self.frame)
    }

    #[cfg(target_arch = "aarch64")]
    fn native(&self) -> UnwindRegsNative {
        // Linux' user addresses have 48 bits; above them are signatures.
        let mask = framehop::aarch64::PtrAuthMask((1 << 48) - 1);
        UnwindRegsNative::new_with_ptr_auth_mask(mask, self.link, self.stack, self.frame)
    }
}

/// A part of memory that holds code.
#[derive(Clone, Debug)]
pub(super) struct Range {
    pub(super) begins: u64,
    pub(super) ends: u64,
    /// Where in the file it begins.
    pub(super) offset: u64,
    pub(super) path: String,
    /// In hexadecimal; empty where there is none.
    pub(super) build_id: String,
    /// From an address in the file to the one in memory.
    shift: u64,
}

/// What a process runs.
pub(super) struct Program {
    pid: u32,
    ranges: Vec<Range>,
    unwinder: UnwinderNative<Vec<u8>, MayAllocateDuringUnwind>,
    cache: CacheNative<MayAllocateDuringUnwind>,
}

impl Program {
    /// Reads what process `pid` runs now. What it loads later is not known.
    pub(super) fn read(pid: u32) -> Result<Self, String> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"));
        let maps = maps.map_err(|error| format!("the process cannot be read: {error}"))?;
        let mut program = Self {
            pid,
            ranges: maps.lines().filter_map(range).collect(),
            unwinder: UnwinderNative::new(),
            cache: CacheNative::new(),
        };
        for at in 0..program.ranges.len() {
            program.learn(at);
        }
        Ok(program)
    }

    pub(super) fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// The number of the range that `address` is in.
    pub(super) fn range_of(&self, address: u64) -> Option<usize> {
        self.ranges.iter().position(|range| (range.begins..range.ends).contains(&address))
    }

    /// Learns how stacks are unwound in a range, if its file is one.
    fn learn(&mut self, at: usize) {
        let Some(range) = self.ranges.get_mut(at) else { return };
        let Some(file) = opened(self.pid, &range.path) else { return };
        let cache = ReadCache::new(file);
        let Ok(object) = object::File::parse(&cache) else { return };
        let Some(shift) = shift(&object, range) else { return };
        range.shift = shift;
        range.build_id = hexadecimal(object.build_id().ok().flatten().unwrap_or_default());
        let module = Module::new(
            range.path.clone(),
            range.begins..range.ends,
            shift,
            ExplicitModuleSectionInfo {
                base_svma: 0,
                text_svma: place(&object, ".text"),
                eh_frame_svma: place(&object, ".eh_frame"),
                eh_frame: bytes(&object, ".eh_frame"),
                eh_frame_hdr_svma: place(&object, ".eh_frame_hdr"),
                eh_frame_hdr: bytes(&object, ".eh_frame_hdr"),
                got_svma: place(&object, ".got"),
                ..ExplicitModuleSectionInfo::default()
            },
        );
        self.unwinder.add_module(module);
    }

    /// The instruction first, then what each function returns to, as far as `stack` says: the bytes from the stack's pointer on.
    pub(super) fn unwound(&mut self, registers: Registers, stack: &[u8]) -> Vec<u64> {
        let mut read = |address: u64| {
            let from = address.checked_sub(registers.stack).ok_or(())?;
            let from = usize::try_from(from).map_err(|_| ())?;
            let word = stack.get(from..from.saturating_add(8)).ok_or(())?;
            word.try_into().map(u64::from_le_bytes).map_err(|_| ())
        };
        let mut frames = self.unwinder.iter_frames(
            registers.instruction,
            registers.native(),
            &mut self.cache,
            &mut read,
        );
        let mut addresses = Vec::new();
        while let (Ok(Some(frame)), true) = (frames.next(), addresses.len() < DEEPEST) {
            addresses.push(match frame {
                FrameAddress::InstructionPointer(address) => address,
                // The call, which may be the last instruction of its function.
                FrameAddress::ReturnAddress(address) => address.get() - 1,
            });
        }
        addresses
    }

    /// What the functions at these addresses are called, where their files say.
    pub(super) fn names(&self, addresses: impl Iterator<Item = u64>) -> HashMap<u64, String> {
        let mut wanted: HashMap<usize, Vec<u64>> = HashMap::new();
        for address in addresses.collect::<BTreeSet<u64>>() {
            if let Some(at) = self.range_of(address) {
                wanted.entry(at).or_default().push(address);
            }
        }
        let known =
            |(at, addresses): (usize, Vec<u64>)| self.names_in(self.ranges.get(at)?, &addresses);
        wanted.into_iter().filter_map(known).flatten().collect()
    }

    /// The names of the functions at these addresses, which are in order.
    fn names_in(&self, range: &Range, addresses: &[u64]) -> Option<Vec<(u64, String)>> {
        let cache = ReadCache::new(opened(self.pid, &range.path)?);
        let object = object::File::parse(&cache).ok()?;
        let mut names = Vec::new();
        for symbol in object.symbols().chain(object.dynamic_symbols()) {
            let begins = symbol.address().wrapping_add(range.shift);
            let ends = begins.wrapping_add(symbol.size());
            let first = addresses.partition_point(|address| *address < begins);
            let of_it = addresses.get(first..).unwrap_or_default();
            let mut of_it = of_it.iter().take_while(|address| **address < ends).peekable();
            // Before the name, each of which is read from the file by itself.
            if of_it.peek().is_none() {
                continue;
            }
            let Some(name) = symbol.name().ok().filter(|name| !name.is_empty()) else { continue };
            names.extend(of_it.map(|address| (*address, name.to_owned())));
        }
        Some(names)
    }
}

/// A line of `/proc/PID/maps`, where it is of code in a file.
fn range(line: &str) -> Option<Range> {
    // A path may have blanks.
    let mut words = line.splitn(6, ' ');
    let (begins, ends) = words.next()?.split_once('-')?;
    let may = words.next()?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let offset = number(words.next()?)?;
    let path = words.nth(2)?.trim_start();
    if !path.starts_with('/') || !may.contains('x') {
        return None;
    }
    Some(Range {
        begins: number(begins)?,
        ends: number(ends)?,
        offset,
        path: path.to_owned(),
        build_id: String::new(),
        shift: 0,
    })
}

/// The file of a range. The program's own is had though it was replaced or removed since it began; a library's is not.
fn opened(pid: u32, path: &str) -> Option<File> {
    let program = format!("/proc/{pid}/exe");
    if std::fs::read_link(&program).ok()?.to_str()? == path {
        return File::open(program).ok();
    }
    File::open(path).ok()
}

/// How far the file's addresses are from those in memory.
fn shift<'data>(object: &impl object::Object<'data>, range: &Range) -> Option<u64> {
    let (begins, ends) = (range.offset, range.offset + (range.ends - range.begins));
    // Pages are whole: what is mapped may begin before the segment, with the end of another.
    let holds = |segment: &_| {
        let (first, size) = object::ObjectSegment::file_range(segment);
        is_code(segment) && first < ends && begins < first + size
    };
    let segment = object.segments().find(holds)?;
    let (begins, _) = segment.file_range();
    let in_file = segment.address().wrapping_add(range.offset).wrapping_sub(begins);
    Some(range.begins.wrapping_sub(in_file))
}

fn is_code<'data>(segment: &impl object::ObjectSegment<'data>) -> bool {
    matches!(segment.flags(), SegmentFlags::Elf { p_flags, .. } if p_flags.contains(PF_X))
}

fn place<'data>(
    object: &impl object::Object<'data>,
    section: &str,
) -> Option<std::ops::Range<u64>> {
    let section = object.section_by_name(section)?;
    Some(section.address()..section.address() + section.size())
}

fn bytes<'data>(object: &impl object::Object<'data>, section: &str) -> Option<Vec<u8>> {
    object.section_by_name(section)?.data().ok().map(<[u8]>::to_vec)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}
