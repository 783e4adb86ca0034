from __future__ import annotations

import random
from ipaddress import IPv4Address

import dns.message
import dns.rrset

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
