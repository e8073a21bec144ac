"""
A posterior at an address of the web: one archive (:mod:`pyro_bnn.posterior.archive`), fetched with its checksum.

    https://host/x.zip#sha256=HEX     the checksum in the address, which then names these bytes and no others
    https://host/x.zip                the checksum in a sidecar `x.zip.sha256`, as sha256sum writes it
    https://host/x.zip#unchecked      none: whoever answers decides what is read

`http://` is taken with the checksum in the address, with `#unchecked`, or from this machine. What is sent on to
another address stays within http and https, and does not fall from https to http. What is fetched is as long as the
server declares and at most the limit `download_bytes`, whatever is declared; a transfer that ends early is refused, and
nothing of it is kept. What was fetched once with its checksum in the address is not fetched again.
"""

import hashlib
import re
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import SplitResult, urlsplit, urlunsplit

from pyro_bnn.common.errors import BadFile, Refused, summary
from pyro_bnn.common.limits import check_limit, in_words
from pyro_bnn.posterior.archive import is_kept, keep, kept_folder

__all__ = ["fetch"]

_SECONDS = 30.0
_PIECE = 2**20
_SIDECAR_BYTES = 4096
_HEX = re.compile(r"[0-9a-f]{64}")
_OWN_MACHINE = ("localhost", "127.0.0.1", "::1")


def fetch(address: str) -> Path:
    """
    Return the folder that the archive at an address was unpacked into.

    :param address: https:// with what names its checksum, see above.
    """
    parts = urlsplit(address)
    bare, wanted = urlunsplit(parts._replace(fragment="")), _wanted(parts, address)
    if not parts.hostname:
        raise Refused(f"{address!r} names no host: give https://HOST/FILE.zip#sha256=...")
    if wanted is None and parts.fragment != "unchecked":
        wanted = _sidecar(parts, bare)
    if wanted is not None and is_kept(wanted):
        return kept_folder(wanted)
    content = _content(bare)
    found = hashlib.sha256(content).hexdigest()
    if wanted is not None and found != wanted:
        raise BadFile(
            f"what {bare} sent has the SHA-256 {found}, and {wanted} was expected: it is damaged, or another file"
        )
    return keep(content, bare)


def _wanted(parts: SplitResult, address: str) -> str | None:
    """Return the checksum that stands in the address, if one does."""
    if parts.fragment in ("", "unchecked"):
        return None
    name, _, value = parts.fragment.partition("=")
    if name != "sha256" or not _HEX.fullmatch(value.lower()):
        raise Refused(
            f"{address!r}: #{parts.fragment:.80} is no checksum; end it with #sha256= and 64 digits 0-9a-f, or with "
            f"#unchecked"
        )
    return value.lower()


def _sidecar(parts: SplitResult, bare: str) -> str:
    """Return the checksum beside the archive; an address that has none is refused."""
    remedy = "end the address with #sha256=HEX, or, if you trust whoever answers, with #unchecked"
    if parts.scheme != "https" and parts.hostname not in _OWN_MACHINE:
        raise Refused(
            f"{bare} comes over http without a checksum of yours, so anybody on the way could change it: {remedy}"
        )
    beside = urlunsplit(parts._replace(fragment="", path=f"{parts.path}.sha256"))
    try:
        text = _content(beside, _SIDECAR_BYTES).decode("ascii", "replace")
    except FileNotFoundError:
        raise Refused(f"{bare} has no checksum, and there is no {beside}: {remedy}") from None
    first = text.split()[0].lower() if text.split() else ""
    if not _HEX.fullmatch(first):
        raise BadFile(f"{beside} holds {text!r:.80}, which is no SHA-256: {remedy}")
    return first


class _Redirect(urllib.request.HTTPRedirectHandler):
    """Follow to http and https alone, and never from https to http."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if after.scheme not in ("http", "https") or (before.scheme == "https" and after.scheme != "https"):
            raise Refused(
                f"{req.full_url} sends on to {newurl!r:.120}: only http and https are followed, and https stays https"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """Return what opens http and https, and neither files nor anything else."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirect(),
    ):
        opener.add_handler(handler)
    return opener


def _content(url: str, most: int | None = None) -> bytes:
    """Return what is at an address, of at most `most` bytes; default the limit `download_bytes`."""
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", "User-Agent": "pyro-bnn"})
    try:
        with _opener().open(request, timeout=_SECONDS) as answer:
            return _body(answer, url, most)
    except urllib.error.HTTPError as error:
        _refuse(error, url)
    except (OSError, HTTPException) as error:
        raise BadFile(
            f"{url} could not be fetched ({summary(error)}): try again, or fetch it by other means"
        ) from error


def _refuse(error: urllib.error.HTTPError, url: str) -> NoReturn:
    error.close()
    if error.code in (404, 410):
        raise FileNotFoundError(f"there is nothing at {url} (HTTP {error.code}): give an address that exists") from None
    if 300 <= error.code < 400:
        told = " ".join(str(error.reason).split())
        raise Refused(f"{url} sends on, and is not followed ({told:.200}): only http and https are, and no circles")
    raise BadFile(f"{url} answers with HTTP {error.code} ({error.reason!s:.80}): try again later") from None


def _body(answer: Any, url: str, most: int | None) -> bytes:
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise BadFile(f"{url} comes packed as {answer.headers['Content-Encoding']!r:.40}, which was not asked for")
    declared = answer.headers.get("Content-Length")
    if declared is not None and not declared.isdecimal():
        raise BadFile(f"{url} declares the length {declared!r:.40}, which is none: fetch it by other means")
    length = None if declared is None else int(declared)
    if length is not None:
        _check_size(length, url, most)
    data = bytearray()
    while piece := answer.read(_PIECE):
        data += piece
        _check_size(len(data), url, most)
    if length is not None and len(data) != length:
        raise BadFile(f"{url} ended after {len(data):,} of {length:,} bytes: the transfer was cut; try again")
    return bytes(data)


def _check_size(size: int, url: str, most: int | None) -> None:
    if most is None:
        check_limit("download_bytes", size, f"bytes of {url}", so=in_words(size))
    elif size > most:
        raise BadFile(f"{url} has more than {most:,} bytes, and is no checksum: give #sha256=HEX in the address")
