from __future__ import annotations

import random
import struct
from ipaddress import IPv4Address

import dns.message
import dns.rrset
import pytest

from sandyard.engine.drivers.machine.net.dns_wire import (
    REFUSED,
    is_answer_to,
    parse_addresses,
    parse_question,
    replace_id,
)


def query(name: str = "web.test", kind: str = "A") -> bytes:
    return dns.message.make_query(name, kind, use_edns=True).to_wire()


def response(*records: tuple[str, int, str, str], name: str = "web.test") -> bytes:
    message = dns.message.make_response(dns.message.make_query(name, "A"))
    message.answer += [dns.rrset.from_text(owner, ttl, "IN", kind, value) for owner, ttl, kind, value in records]
    return message.to_wire()


def test_a_question_is_parsed_and_can_be_refused() -> None:
    wire = query("WwW.Web.test")
    question = parse_question(wire)
    assert question and question.name == "www.web.test"
    refusal = dns.message.from_wire(question.make_empty_reply(REFUSED))
    assert refusal.rcode() == REFUSED
    assert dns.message.from_wire(wire).is_response(refusal)


def test_a_dot_inside_a_label_is_not_a_separator() -> None:
    wire = query("x")[:12] + b"\x08web.test\x00\x00\x01\x00\x01"
    question = parse_question(wire)
    assert question and question.name != "web.test"


def test_malformed_questions_are_rejected() -> None:
    wire = query()
    for bad in (
        b"",
        wire[:11],
        wire[:14],
        wire[:20],
        wire[:2] + b"\x81" + wire[3:],  # a response
        wire[:2] + b"\x29" + wire[3:],  # another opcode
        wire[:5] + b"\x02" + wire[6:],  # two questions
        wire[:12] + b"\xc0\x0c\x00\x01\x00\x01",  # a pointer to itself
        wire[:12]
        + b"\x3f"
        + b"a" * 63
        + b"\x3f"
        + b"b" * 63
        + b"\x3f"
        + b"c" * 63
        + b"\x3f"
        + b"d" * 63
        + b"\x05eeeee\x00"
        + bytes(4),
    ):
        assert parse_question(bad) is None
    random.seed(7)
    for _ in range(2000):
        noise = bytes(random.getrandbits(8) for _ in range(random.randrange(80)))
        parse_question(noise)
        parse_question(wire[:12] + noise)
        parse_addresses(noise)
        parse_addresses(response(("web.test.", 60, "A", "198.51.100.1"))[:20] + noise)


def test_only_the_matching_response_is_accepted() -> None:
    question = parse_question(query())
    assert question
    good = replace_id(response(("web.test.", 60, "A", "198.51.100.1")), 77)
    assert is_answer_to(good, 77, question)
    assert not is_answer_to(good, 78, question)
    assert not is_answer_to(replace_id(query(), 77), 77, question)
    assert not is_answer_to(replace_id(response(name="other.test"), 77), 77, question)
    assert not is_answer_to(b"\x00", 77, question)


def test_addresses_are_resolved_through_aliases_of_the_requested_name() -> None:
    wire = response(
        ("web.test.", 300, "CNAME", "a.cdn.test."),
        ("a.cdn.test.", 20, "CNAME", "b.cdn.test."),
        ("b.cdn.test.", 60, "A", "198.51.100.1"),
        ("unrelated.test.", 60, "A", "198.51.100.2"),
    )
    assert parse_addresses(wire) == {IPv4Address("198.51.100.1"): 20}
    assert parse_addresses(response(("web.test.", 60, "CNAME", "web.test."))) == {}
    assert parse_addresses(response()) == {}


def test_only_so_many_records_are_read() -> None:
    """A sandbox may have chosen the answer, and the engine's event loop waits while it is parsed."""
    wire = response(*(("web.test.", 60, "A", f"198.51.{number >> 8}.{number & 255}") for number in range(4000)))
    assert len(parse_addresses(wire)) == 128


@pytest.mark.parametrize(
    "records",
    [
        b"\xc0\x0c" * 3,
        b"\xc0\x1a" + b"\0\1\0\1" + struct.pack("!IH", 60, 4) + bytes(4),  # a name that points to itself
        b"\xff\xff" + b"\0\1\0\1" + struct.pack("!IH", 60, 4) + bytes(4),
        b"\xc0\x0c" + b"\0\1\0\1" + struct.pack("!IH", 60, 400) + bytes(4),
        b"\x80a" + b"\0\1\0\1" + struct.pack("!IH", 60, 4) + bytes(4),
        b"\xc0\x0c" + b"\0\5\0\1" + struct.pack("!IH", 60, 2) + b"\x3fa",
        (b"\x3f" + b"a" * 63) * 5,
    ],
)
def test_malformed_records_open_nothing(records: bytes) -> None:
    wire = response()
    assert parse_addresses(wire[:6] + b"\0\1" + wire[8:] + records) == {}


def test_names_are_compared_without_regard_to_case_and_records_of_other_classes_are_ignored() -> None:
    answer = b"\x03WEB\x04tEsT\0"
    address = struct.pack("!IH", 60, 4) + bytes([198, 51, 100, 1])
    wire = response()
    wire = wire[:6] + b"\0\2" + wire[8:] + answer + b"\0\1\0\3" + address + answer + b"\0\1\0\1" + address
    assert parse_addresses(wire) == {IPv4Address("198.51.100.1"): 60}
