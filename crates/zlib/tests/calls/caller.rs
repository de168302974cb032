// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A caller of zlib's interface, with the memory of nginx's gzip filter.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::io::Read as _;
use std::mem;
use std::ptr;

use flate2::read::{DeflateDecoder, GzDecoder};
use millrace_zlib::ffi::{self, ZStream};

pub(crate) const OK: c_int = 0;
pub(crate) const ENDED: c_int = 1;
pub(crate) const NO_FLUSH: c_int = 0;
pub(crate) const SYNC: c_int = 2;
pub(crate) const FINISH: c_int = 4;
const BUF_ERROR: c_int = -5;

type Init2 = unsafe extern "C" fn(
    *mut ZStream,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_char,
    c_int,
) -> c_int;
type Deflate = unsafe extern "C" fn(*mut ZStream, c_int) -> c_int;
type Params = unsafe extern "C" fn(*mut ZStream, c_int, c_int) -> c_int;
type Bound = unsafe extern "C" fn(*mut ZStream, c_ulong) -> c_ulong;
type Pending = unsafe extern "C" fn(*mut ZStream, *mut c_uint, *mut c_int) -> c_int;
type Copy2 = unsafe extern "C" fn(*mut ZStream, *mut ZStream) -> c_int;
type Simple = unsafe extern "C" fn(*mut ZStream) -> c_int;

/// The functions of one implementation.
#[derive(Clone, Copy)]
pub(crate) struct Api {
    init2: Init2,
    deflate: Deflate,
    end: Simple,
    reset: Simple,
    params: Params,
    bound: Bound,
    pending: Pending,
    copy: Copy2,
}

impl Api {
    /// Functions of this library.
    pub(crate) const OURS: Self = Self {
        init2: ffi::deflateInit2_,
        deflate: ffi::deflate,
        end: ffi::deflateEnd,
        reset: ffi::deflateReset,
        params: ffi::deflateParams,
        bound: ffi::deflateBound,
        pending: ffi::deflatePending,
        copy: ffi::deflateCopy,
    };

    /// The system's zlib.
    pub(crate) fn system() -> Self {
        Self {
            // SAFETY: these are their signatures.
            init2: unsafe { mem::transmute::<*mut c_void, Init2>(symbol(c"deflateInit2_")) },
            // SAFETY: as above.
            deflate: unsafe { mem::transmute::<*mut c_void, Deflate>(symbol(c"deflate")) },
            // SAFETY: as above.
            end: unsafe { mem::transmute::<*mut c_void, Simple>(symbol(c"deflateEnd")) },
            // SAFETY: as above.
            reset: unsafe { mem::transmute::<*mut c_void, Simple>(symbol(c"deflateReset")) },
            // SAFETY: as above.
            params: unsafe { mem::transmute::<*mut c_void, Params>(symbol(c"deflateParams")) },
            // SAFETY: as above.
            bound: unsafe { mem::transmute::<*mut c_void, Bound>(symbol(c"deflateBound")) },
            // SAFETY: as above.
            pending: unsafe { mem::transmute::<*mut c_void, Pending>(symbol(c"deflatePending")) },
            // SAFETY: as above.
            copy: unsafe { mem::transmute::<*mut c_void, Copy2>(symbol(c"deflateCopy")) },
        }
    }
}

fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: C strings.
    let found = unsafe {
        let library = libc::dlopen(c"libz.so.1".as_ptr(), libc::RTLD_NOW);
        libc::dlsym(library, name.as_ptr())
    };
    assert!(!found.is_null(), "{name:?}");
    found
}

/// Memory for a stream, and its allocator.
#[derive(Debug)]
pub(crate) struct Memory {
    aside: Vec<u8>,
    used: usize,
    filling: u8,
    requests: usize,
    beyond: Vec<Vec<u8>>,
    libc: bool,
}

impl Memory {
    /// The piece that nginx 1.22 sets aside for one response; what does not fit is an alert in its log.
    pub(crate) fn as_nginx(bits: c_int, memory_level: c_int) -> Box<Self> {
        let aside = 8192 + 16 + (1_usize << (bits + 2)) + (1 << (memory_level + 9));
        Box::new(Self {
            aside: vec![0x5a; aside],
            used: 0,
            filling: 0x5a,
            requests: 0,
            beyond: Vec::new(),
            libc: false,
        })
    }

    /// Memory of the library's default allocator.
    pub(crate) fn of_libc() -> Box<Self> {
        let mut memory = Self::as_nginx(9, 1);
        memory.libc = true;
        memory
    }

    pub(crate) fn filled(mut self: Box<Self>, filling: u8) -> Box<Self> {
        self.aside.fill(filling);
        self.filling = filling;
        self
    }

    /// Requests, and those that did not fit.
    pub(crate) fn requests(&self) -> (usize, usize) {
        (self.requests, self.beyond.len())
    }
}

/// `ngx_http_gzip_filter_alloc`.
unsafe extern "C" fn alloc(memory: *mut c_void, items: c_uint, size: c_uint) -> *mut c_void {
    // SAFETY: the box of the caller.
    let memory = unsafe { &mut *memory.cast::<Memory>() };
    memory.requests += 1;
    let mut bytes = items as usize * size as usize;
    if items == 1 && !bytes.is_multiple_of(512) && bytes < 8192 {
        bytes = 8192;
    }
    if bytes <= memory.aside.len() - memory.used {
        let start = memory.used;
        memory.used += bytes;
        return memory.aside[start..].as_mut_ptr().cast();
    }
    memory.beyond.push(vec![memory.filling; bytes]);
    memory.beyond.last_mut().map_or(ptr::null_mut(), |piece| piece.as_mut_ptr().cast())
}

unsafe extern "C" fn free(_: *mut c_void, _: *mut c_void) {}

/// One stream and what it has written.
pub(crate) struct Caller {
    api: Api,
    stream: Box<ZStream>,
    memory: Box<Memory>,
    pub(crate) output: Vec<u8>,
}

fn empty() -> ZStream {
    // SAFETY: all fields may be zero.
    unsafe { mem::zeroed() }
}

fn size() -> c_int {
    c_int::try_from(size_of::<ZStream>()).expect("112")
}

impl Caller {
    pub(crate) fn begin(
        api: &Api,
        memory: Box<Memory>,
        level: c_int,
        bits: c_int,
        memory_level: c_int,
    ) -> Self {
        let mut caller = Self { api: *api, stream: Box::new(empty()), memory, output: Vec::new() };
        if !caller.memory.libc {
            caller.stream.zalloc = Some(alloc);
            caller.stream.zfree = Some(free);
            caller.stream.opaque = ptr::from_mut(&mut *caller.memory).cast();
        }
        // SAFETY: a prepared stream.
        let result = unsafe {
            (api.init2)(
                &raw mut *caller.stream,
                level,
                8,
                bits,
                memory_level,
                0,
                c"1.2.13".as_ptr(),
                size(),
            )
        };
        assert_eq!(result, OK, "{level} {bits} {memory_level}");
        caller
    }

    /// One call: the result, and how much of the input was read.
    pub(crate) fn call(&mut self, input: &[u8], room: usize, flush: c_int) -> (c_int, usize) {
        let mut output = vec![0xcc; room + 8];
        self.stream.next_in = if input.is_empty() { ptr::null() } else { input.as_ptr() };
        self.stream.avail_in = c_uint::try_from(input.len()).expect("small");
        self.stream.next_out = output.as_mut_ptr();
        self.stream.avail_out = c_uint::try_from(room).expect("small");
        // SAFETY: the buffers live across the call.
        let result = unsafe { (self.api.deflate)(&raw mut *self.stream, flush) };
        let (left, free) = (self.stream.avail_in as usize, self.stream.avail_out as usize);
        assert!(left <= input.len() && free <= room);
        assert!(output[room..] == [0xcc; 8], "nothing behind the output is written");
        self.output.extend(&output[..room - free]);
        (result, input.len() - left)
    }

    /// Feeds input as nginx does: calls again while the output is full, and until the end of a stream that is to be
    /// finished.
    pub(crate) fn feed(&mut self, input: &[u8], room: usize, flush: c_int) -> c_int {
        let mut rest = input;
        // Each round writes at least a byte.
        for _ in 0..4 * (input.len() + self.output.len()) + 1_000_000 {
            let (result, read) = self.call(rest, room, flush);
            rest = &rest[read..];
            assert!(matches!(result, OK | ENDED | BUF_ERROR), "{result}");
            if result == ENDED {
                return ENDED;
            }
            if self.stream.avail_out != 0 {
                assert!(rest.is_empty(), "with room in the output all input is taken");
                assert_ne!(flush, FINISH, "with room in the output the stream ends");
                return OK;
            }
        }
        panic!("no end");
    }

    pub(crate) fn totals(&self) -> (usize, usize) {
        let number = |total: c_ulong| usize::try_from(total).expect("small");
        (number(self.stream.total_in), number(self.stream.total_out))
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn end(&mut self) -> c_int {
        // SAFETY: begun.
        unsafe { (self.api.end)(&raw mut *self.stream) }
    }

    pub(crate) fn reset(&mut self) -> c_int {
        self.output.clear();
        // SAFETY: begun.
        unsafe { (self.api.reset)(&raw mut *self.stream) }
    }

    /// The result, with the output that it wrote.
    pub(crate) fn params(&mut self, level: c_int, strategy: c_int, room: usize) -> c_int {
        let mut output = vec![0; room];
        self.stream.next_in = ptr::null();
        self.stream.avail_in = 0;
        self.stream.next_out = output.as_mut_ptr();
        self.stream.avail_out = c_uint::try_from(room).expect("small");
        // SAFETY: begun; the buffer lives across the call.
        let result = unsafe { (self.api.params)(&raw mut *self.stream, level, strategy) };
        let written = room - self.stream.avail_out as usize;
        self.output.extend(&output[..written]);
        result
    }

    pub(crate) fn bound(&mut self, length: usize) -> usize {
        // SAFETY: begun.
        let bound = unsafe { (self.api.bound)(&raw mut *self.stream, length as c_ulong) };
        usize::try_from(bound).expect("small")
    }

    pub(crate) fn pending(&mut self) -> (c_int, usize) {
        let (mut bytes, mut bits) = (0, 0);
        // SAFETY: begun; two places.
        let result =
            unsafe { (self.api.pending)(&raw mut *self.stream, &raw mut bytes, &raw mut bits) };
        (result, bytes as usize)
    }

    /// A second stream that goes on from here, in memory of this one.
    pub(crate) fn copy(&mut self) -> Self {
        let mut copy = Self {
            api: self.api,
            stream: Box::new(empty()),
            memory: Memory::of_libc(),
            output: self.output.clone(),
        };
        // SAFETY: begun.
        let result = unsafe { (self.api.copy)(&raw mut *copy.stream, &raw mut *self.stream) };
        assert_eq!(result, OK);
        copy
    }

    pub(crate) fn gunzip(&self) -> Vec<u8> {
        let mut found = Vec::new();
        let mut decoder = GzDecoder::new(&self.output[..]);
        decoder.read_to_end(&mut found).expect("gzip");
        assert!(decoder.into_inner().is_empty(), "bytes behind the trailer");
        found
    }

    /// Decompressed output of an unfinished gzip stream.
    pub(crate) fn readable(&self) -> Vec<u8> {
        // The head of gzip, then a stream that is closed by an empty block.
        let mut stream = self.output.get(10..).unwrap_or_default().to_vec();
        stream.extend([3, 0]);
        let mut found = Vec::new();
        DeflateDecoder::new(&stream[..])
            .read_to_end(&mut found)
            .expect("blocks that end at a byte");
        found
    }

    /// Decompressed by the system's zlib, in whatever format it is.
    pub(crate) fn inflated_by_zlib(&self) -> Vec<u8> {
        type Init = unsafe extern "C" fn(*mut ZStream, c_int, *const c_char, c_int) -> c_int;
        // SAFETY: these are the signatures of zlib.
        let (init, inflate, set_dictionary, end) = unsafe {
            (
                mem::transmute::<*mut c_void, Init>(symbol(c"inflateInit2_")),
                mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut ZStream, c_int) -> c_int>(
                    symbol(c"inflate"),
                ),
                mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut ZStream, *const u8, c_uint) -> c_int,
                >(symbol(c"inflateSetDictionary")),
                mem::transmute::<*mut c_void, Simple>(symbol(c"inflateEnd")),
            )
        };
        let mut stream = empty();
        let mut found = vec![0; 1 << 20];
        // SAFETY: a prepared stream, buffers as long as stated.
        unsafe {
            // Any head of zlib or gzip.
            assert_eq!(init(&raw mut stream, 47, c"1.2.13".as_ptr(), size()), OK);
            stream.next_in = self.output.as_ptr();
            stream.avail_in = c_uint::try_from(self.output.len()).expect("small");
            stream.next_out = found.as_mut_ptr();
            stream.avail_out = 1 << 20;
            let mut result = inflate(&raw mut stream, FINISH);
            if result == 2 {
                let length = c_uint::try_from(DICTIONARY.len()).expect("small");
                assert_eq!(set_dictionary(&raw mut stream, DICTIONARY.as_ptr(), length), OK);
                result = inflate(&raw mut stream, FINISH);
            }
            assert_eq!(result, ENDED);
            end(&raw mut stream);
        }
        found.truncate(usize::try_from(stream.total_out).expect("small"));
        found
    }
}

const DICTIONARY: &[u8] = b"<a href=\"/item/\"></a>\n";

type Case = fn(&Api) -> Vec<c_int>;

/// Calls that a server must not make, with what each returns.
pub(crate) const MISUSE: [(&str, Case); 7] = [
    ("no stream", |api| {
        // SAFETY: null is refused.
        unsafe {
            vec![
                (api.deflate)(ptr::null_mut(), 0),
                (api.end)(ptr::null_mut()),
                (api.reset)(ptr::null_mut()),
                (api.init2)(ptr::null_mut(), 6, 8, 31, 8, 0, c"1.2.13".as_ptr(), size()),
            ]
        }
    }),
    ("another version or size", |api| {
        let mut stream = empty();
        // SAFETY: refused before the stream is used.
        unsafe {
            vec![
                (api.init2)(&raw mut stream, 6, 8, 31, 8, 0, ptr::null(), size()),
                (api.init2)(&raw mut stream, 6, 8, 31, 8, 0, c"2.0".as_ptr(), size()),
                (api.init2)(&raw mut stream, 6, 8, 31, 8, 0, c"1.2.13".as_ptr(), size() - 1),
                (api.deflate)(&raw mut stream, 0),
                (api.end)(&raw mut stream),
            ]
        }
    }),
    ("parameters out of range", |api| {
        let mut results = Vec::new();
        for (level, method, bits, memory, strategy) in [
            (10, 8, 31, 8, 0),
            (-2, 8, 31, 8, 0),
            (6, 7, 31, 8, 0),
            (6, 8, 32, 8, 0),
            (6, 8, 31, 10, 0),
            (6, 8, 31, 0, 0),
            (6, 8, 31, 8, 5),
            (6, 8, 7, 8, 0),
        ] {
            let mut stream = empty();
            // SAFETY: a prepared stream.
            results.push(unsafe {
                (api.init2)(
                    &raw mut stream,
                    level,
                    method,
                    bits,
                    memory,
                    strategy,
                    c"1.2.13".as_ptr(),
                    size(),
                )
            });
        }
        results
    }),
    ("flush that does not exist", |api| {
        let mut caller = Caller::begin(api, Memory::of_libc(), 6, 31, 8);
        vec![
            caller.call(b"a", 100, 7).0,
            caller.call(b"a", 100, -1).0,
            caller.call(b"a", 100, 6).0,
            caller.end(),
        ]
    }),
    ("no room, no input", |api| {
        let mut caller = Caller::begin(api, Memory::of_libc(), 6, 31, 8);
        let mut results =
            vec![caller.call(b"a", 0, NO_FLUSH).0, caller.call(b"abc", 100, NO_FLUSH).0];
        results.push(caller.call(b"", 100, NO_FLUSH).0);
        results.push(caller.call(b"", 100, SYNC).0);
        results.push(caller.call(b"", 100, SYNC).0);
        results.push(caller.end());
        results
    }),
    ("calls behind the end", |api| {
        let mut caller = Caller::begin(api, Memory::of_libc(), 6, 31, 8);
        let mut results = vec![caller.call(b"abc", 100, FINISH).0, caller.call(b"", 100, FINISH).0];
        results.push(caller.call(b"x", 100, FINISH).0);
        results.push(caller.call(b"", 100, NO_FLUSH).0);
        results.push(caller.reset());
        results.push(caller.call(b"abc", 100, FINISH).0);
        results.push(caller.end());
        results.push(caller.end());
        results
    }),
    ("end in the middle", |api| {
        let mut caller = Caller::begin(api, Memory::of_libc(), 6, 31, 8);
        vec![caller.call(b"abc", 100, NO_FLUSH).0, caller.end()]
    }),
];

type Call = fn(&mut Caller) -> c_int;

/// Functions that go back to zlib with the stream.
pub(crate) const NEED_ZLIB: [(&str, Call); 4] = [
    ("deflateSetDictionary", |caller| {
        let length = c_uint::try_from(DICTIONARY.len()).expect("small");
        // SAFETY: begun.
        unsafe { ffi::deflateSetDictionary(&raw mut *caller.stream, DICTIONARY.as_ptr(), length) }
    }),
    ("deflateTune", |caller| {
        // SAFETY: begun.
        unsafe { ffi::deflateTune(&raw mut *caller.stream, 4, 5, 16, 8) }
    }),
    ("deflateParams with a strategy", |caller| caller.params(3, 2, 100)),
    ("deflatePrime of nothing", |caller| {
        // SAFETY: begun.
        unsafe { ffi::deflatePrime(&raw mut *caller.stream, 0, 0) }
    }),
];

/// Bytes of the heap that are in use.
pub(crate) fn heap_bytes() -> usize {
    // SAFETY: takes nothing.
    let found = unsafe { libc::mallinfo2() };
    found.uordblks + found.hblkhd
}
