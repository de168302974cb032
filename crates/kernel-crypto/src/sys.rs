// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The system calls of `AF_ALG` and `/dev/crypto`. The kernel checks every length and address that they pass.

use std::io::{Error, IoSlice, IoSliceMut, Result};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::{mem, ptr};

use libc::{c_int, c_ulong, c_void};

use crate::algorithm::BulkDirection;

/// Bytes of the longest initialisation vector: a block of AES.
const MAX_IV: usize = 16;

fn outcome(result: c_int) -> Result<c_int> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

fn count(result: isize) -> Result<usize> {
    usize::try_from(result).map_err(|_| Error::last_os_error())
}

fn invalid() -> Error {
    Error::from_raw_os_error(libc::EINVAL)
}

/// A length, as the kernel's structs have it.
fn number32(number: usize) -> Result<u32> {
    u32::try_from(number).map_err(|_| invalid())
}

fn owned(fd: c_int) -> OwnedFd {
    // SAFETY: the callers pass a descriptor that the kernel has just made for them alone.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

// ---- AF_ALG -----------------------------------------------------------------------------------------

/// A socket for an algorithm: `kind` is `skcipher`, `aead` or `hash`, `name` that of the kernel.
pub(super) fn algorithm(kind: &[u8], name: &[u8]) -> Result<OwnedFd> {
    // SAFETY: takes numbers.
    let fd = unsafe { libc::socket(libc::AF_ALG, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    let socket = owned(outcome(fd)?);
    // SAFETY: plain numbers, for which zeros are a value.
    let mut address: libc::sockaddr_alg = unsafe { mem::zeroed() };
    address.salg_family = u16::try_from(libc::AF_ALG).map_err(|_| invalid())?;
    // Each name ends with a zero byte.
    let fits = kind.len() < address.salg_type.len() && name.len() < address.salg_name.len();
    if !fits {
        return Err(invalid());
    }
    address.salg_type[..kind.len()].copy_from_slice(kind);
    address.salg_name[..name.len()].copy_from_slice(name);
    let len = number32(size_of_val(&address))?;
    // SAFETY: an address with its length.
    outcome(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(socket)
}

pub(super) fn set_key(socket: &OwnedFd, key: &[u8]) -> Result<()> {
    let len = number32(key.len())?;
    let level = libc::SOL_ALG;
    let option = libc::ALG_SET_KEY;
    // SAFETY: `key` is readable for its length.
    let done =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, key.as_ptr().cast(), len) };
    outcome(done).map(drop)
}

/// Sets the length of the tag of an authenticated cipher.
pub(super) fn set_tag_len(socket: &OwnedFd, len: usize) -> Result<()> {
    let len = number32(len)?;
    let level = libc::SOL_ALG;
    let option = libc::ALG_SET_AEAD_AUTHSIZE;
    // SAFETY: the length is the value; there is no data.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, ptr::null(), len) };
    outcome(done).map(drop)
}

/// A socket for operations with the key that is set.
pub(super) fn operations(socket: &OwnedFd) -> Result<OwnedFd> {
    let no_address = ptr::null_mut();
    let no_len = ptr::null_mut();
    // SAFETY: null asks for no address.
    let fd = unsafe { libc::accept4(socket.as_raw_fd(), no_address, no_len, libc::SOCK_CLOEXEC) };
    outcome(fd).map(owned)
}

/// Room for three control messages, aligned like `struct cmsghdr`.
#[repr(C, align(8))]
struct Control([u8; 128]);

/// Parameters of a message for a cipher.
pub(super) struct Order<'a> {
    pub(super) direction: BulkDirection,
    pub(super) iv: &'a [u8],
    /// Bytes at the start of the input that are authenticated only; `None` for a cipher without a tag.
    pub(super) authenticated: Option<usize>,
}

/// Sends a message, or fails at once if the socket's buffer has no room.
pub(super) fn send(
    socket: &OwnedFd,
    order: Option<&Order<'_>>,
    parts: &[IoSlice<'_>],
) -> Result<usize> {
    let mut control = Control([0; 128]);
    // SAFETY: plain numbers and null pointers, for which zeros are a value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    // `IoSlice` has the layout of `iovec`; the kernel only reads them.
    message.msg_iov = parts.as_ptr().cast_mut().cast();
    message.msg_iovlen = parts.len() as _;
    if let Some(order) = order {
        // `struct af_alg_iv`: the length, and as many bytes.
        let mut iv = [0; 4 + MAX_IV];
        let room = iv.get_mut(4..4 + order.iv.len()).ok_or_else(invalid)?;
        room.copy_from_slice(order.iv);
        let len = number32(order.iv.len())?;
        iv[..4].copy_from_slice(&len.to_ne_bytes());
        let direction: u32 = match order.direction {
            BulkDirection::Decrypt => 0,
            BulkDirection::Encrypt => 1,
        };
        let mut writer = ControlWriter { control: &mut control, used: 0 };
        writer.put(libc::ALG_SET_OP, &direction.to_ne_bytes());
        writer.put(libc::ALG_SET_IV, &iv[..4 + order.iv.len()]);
        if let Some(len) = order.authenticated {
            let len = number32(len)?;
            writer.put(libc::ALG_SET_AEAD_ASSOCLEN, &len.to_ne_bytes());
        }
        message.msg_controllen = writer.used as _;
        message.msg_control = control.0.as_mut_ptr().cast();
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message names parts that are readable for their lengths, and control data with its length.
    count(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) })
}

/// Appends control messages to the buffer.
struct ControlWriter<'a> {
    control: &'a mut Control,
    used: usize,
}

impl ControlWriter<'_> {
    /// Bytes of `struct cmsghdr`, which the data follow.
    const HEAD: usize = size_of::<libc::cmsghdr>();

    /// The three messages of an [`Order`] have 24, 40 and 24 bytes at most: less than the room.
    fn put(&mut self, kind: c_int, data: &[u8]) {
        let mut head = Vec::with_capacity(Self::HEAD);
        // The length has the size of a word on Linux.
        head.extend((Self::HEAD + data.len()).to_ne_bytes());
        head.extend(libc::SOL_ALG.to_ne_bytes());
        head.extend(kind.to_ne_bytes());
        let start = self.used;
        self.control.0[start..start + Self::HEAD].copy_from_slice(&head[..Self::HEAD]);
        let at = start + Self::HEAD;
        self.control.0[at..at + data.len()].copy_from_slice(data);
        self.used = at + data.len().next_multiple_of(size_of::<usize>());
    }
}

/// Receives a result.
pub(super) fn receive(socket: &OwnedFd, parts: &mut [IoSliceMut<'_>]) -> Result<usize> {
    // SAFETY: plain numbers and null pointers, for which zeros are a value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    // `IoSliceMut` has the layout of `iovec`.
    message.msg_iov = parts.as_mut_ptr().cast();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: the message names parts that are writable for their lengths.
    count(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) })
}

// ---- /dev/crypto ------------------------------------------------------------------------------------

/// `struct session_op` of cryptodev-linux. Some releases have a number for compression before the length of the key:
/// both forms have the same size.
#[repr(C)]
struct SessionOp {
    cipher: u32,
    mac: u32,
    lens: [u32; 2],
    key: *const u8,
    mac_key_len: u32,
    mac_key: *const u8,
    session: u32,
}

/// `struct crypt_op`.
#[repr(C)]
struct CryptOp {
    session: u32,
    op: u16,
    flags: u16,
    len: u32,
    /// Length of the output, in the releases with compression; unused in the others.
    out_len: u32,
    src: *const u8,
    dst: *mut u8,
    mac: *mut u8,
    iv: *const u8,
}

/// `struct crypt_auth_op`.
#[repr(C)]
struct CryptAuthOp {
    session: u32,
    op: u16,
    flags: u16,
    len: u32,
    auth_len: u32,
    auth_src: *const u8,
    src: *const u8,
    dst: *mut u8,
    tag: *mut u8,
    tag_len: u32,
    iv: *const u8,
    iv_len: u32,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(
    size_of::<SessionOp>() == 48 && size_of::<CryptOp>() == 48 && size_of::<CryptAuthOp>() == 72
);

/// `_IOWR('c', number, T)`, and `_IOW` for the end of a session.
const fn request<T>(number: c_ulong) -> c_ulong {
    3 << 30 | (size_of::<T>() as c_ulong) << 16 | (b'c' as c_ulong) << 8 | number
}
const BEGIN_SESSION: c_ulong = request::<SessionOp>(102);
const END_SESSION: c_ulong = 1 << 30 | 4 << 16 | (b'c' as c_ulong) << 8 | 103;
const CRYPT: c_ulong = request::<CryptOp>(104);
const CRYPT_AUTH: c_ulong = request::<CryptAuthOp>(109);

/// # Safety
/// `argument` is what the request takes.
unsafe fn control(device: BorrowedFd<'_>, request: c_ulong, argument: *mut c_void) -> Result<()> {
    // SAFETY: by this function's contract.
    outcome(unsafe { libc::ioctl(device.as_raw_fd(), request as _, argument) }).map(drop)
}

/// Begins a session with a cipher or a MAC, by the device's number for it. 0 stands for no cipher or no MAC.
pub(super) fn begin_session(
    device: BorrowedFd<'_>,
    cipher: u32,
    mac: u32,
    key: &[u8],
) -> Result<u32> {
    let len = number32(key.len())?;
    let mut first_error = None;
    for with_compression in [false, true] {
        let mut op = SessionOp {
            cipher,
            mac,
            lens: [0; 2],
            key: ptr::null(),
            mac_key_len: 0,
            mac_key: ptr::null(),
            session: 0,
        };
        if cipher != 0 {
            op.lens[usize::from(with_compression)] = len;
            op.key = key.as_ptr();
        } else if !key.is_empty() {
            (op.mac_key_len, op.mac_key) = (len, key.as_ptr());
        }
        // SAFETY: the request's struct, with a key that is readable for its length.
        match unsafe { control(device, BEGIN_SESSION, (&raw mut op).cast()) } {
            Ok(()) => return Ok(op.session),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    Err(first_error.unwrap_or_else(invalid))
}

pub(super) fn end_session(device: BorrowedFd<'_>, session: u32) {
    let mut session = session;
    // It fails only for a session that is gone already.
    // SAFETY: the request takes the number of a session.
    let _ = unsafe { control(device, END_SESSION, (&raw mut session).cast()) };
}

fn number(direction: BulkDirection) -> u16 {
    match direction {
        BulkDirection::Encrypt => 0,
        BulkDirection::Decrypt => 1,
    }
}

/// Encrypts or decrypts whole blocks into `out`, which is as long.
pub(super) fn crypt(
    device: BorrowedFd<'_>,
    session: u32,
    direction: BulkDirection,
    iv: &[u8],
    input: &[u8],
    out: &mut [u8],
) -> Result<()> {
    if out.len() != input.len() || iv.len() != MAX_IV {
        return Err(invalid());
    }
    let len = number32(input.len())?;
    let mut op = CryptOp {
        session,
        op: number(direction),
        flags: 0,
        len,
        out_len: len,
        src: input.as_ptr(),
        dst: out.as_mut_ptr(),
        mac: ptr::null_mut(),
        iv: iv.as_ptr(),
    };
    // SAFETY: the request's struct: an input and an output of `len` bytes, and the vector of a block's length.
    unsafe { control(device, CRYPT, (&raw mut op).cast()) }
}

/// Hashes a message into `out`, which has the length of the result.
pub(super) fn hash(
    device: BorrowedFd<'_>,
    session: u32,
    input: &[u8],
    out: &mut [u8],
) -> Result<()> {
    /// The longest result that a device writes (`HASH_MAX_LEN`).
    const MAX_RESULT: usize = 64;
    let mut result = [0; MAX_RESULT];
    let len = number32(input.len())?;
    let mut op = CryptOp {
        session,
        op: number(BulkDirection::Encrypt),
        flags: 0,
        len,
        out_len: len,
        src: input.as_ptr(),
        dst: ptr::null_mut(),
        mac: result.as_mut_ptr(),
        iv: ptr::null(),
    };
    // SAFETY: the request's struct: an input of `len` bytes, and room for the longest result.
    unsafe { control(device, CRYPT, (&raw mut op).cast()) }?;
    let found = result.get(..out.len()).ok_or_else(invalid)?;
    out.copy_from_slice(found);
    Ok(())
}

/// Encrypts and authenticates a message, or decrypts and checks it. A tag of `tag_len` bytes follows the ciphertext.
/// So the output of an encryption is longer than its input by the tag. The output of a decryption has room for the tag,
/// too, since drivers may use that room.
pub(super) fn crypt_auth(
    device: BorrowedFd<'_>,
    session: u32,
    order: &Order<'_>,
    aad: &[u8],
    input: &[u8],
    out: &mut [u8],
    tag_len: usize,
) -> Result<()> {
    let expected = match order.direction {
        BulkDirection::Encrypt => input.len().checked_add(tag_len),
        BulkDirection::Decrypt => Some(input.len()),
    };
    if expected != Some(out.len()) {
        return Err(invalid());
    }
    let mut op = CryptAuthOp {
        session,
        op: number(order.direction),
        flags: 0,
        len: number32(input.len())?,
        auth_len: number32(aad.len())?,
        auth_src: aad.as_ptr(),
        src: input.as_ptr(),
        dst: out.as_mut_ptr(),
        tag: ptr::null_mut(),
        tag_len: number32(tag_len)?,
        iv: order.iv.as_ptr(),
        iv_len: number32(order.iv.len())?,
    };
    // SAFETY: the request's struct: inputs that are readable for their lengths, and an output with room for the result.
    unsafe { control(device, CRYPT_AUTH, (&raw mut op).cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_does_not_fit_the_address_is_refused() {
        let refused = algorithm(&[b'k'; 14], b"cbc(aes)").expect_err("no room for the end");
        let missing_family = refused.raw_os_error() == Some(libc::EAFNOSUPPORT);
        assert!(missing_family || refused.raw_os_error() == Some(libc::EINVAL), "{refused}");
    }
}
