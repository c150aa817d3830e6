"""Assemble WebAssembly text to its binary form: the subset that the engine's matmul kernel is written in.

The kernel is built from its readable source whenever a page is built, so that the repository holds no binary. One
module, imports and exports, functions of named parameters and locals, folded instructions and `loop`.
"""

import re
from collections.abc import Iterator
from typing import Any

MAGIC = b"\0asm\1\0\0\0"
TYPES = {"i32": 0x7F, "v128": 0x7B}
LOOP, END, BLOCK_WITHOUT_RESULT = 0x03, 0x0B, 0x40
VECTOR = 0xFD  # prefix of SIMD instructions

OPERATORS = {
    "i32.lt_u": b"\x49",
    "i32.add": b"\x6a",
    "i32.sub": b"\x6b",
    "i32.mul": b"\x6c",
    "i32.shl": b"\x74",
    "f32x4.add": b"\xfd\xe4\x01",
    "f32x4.mul": b"\xfd\xe6\x01",
}
LOCALS = {"local.get": 0x20, "local.set": 0x21, "local.tee": 0x22}
# Number of the SIMD instruction, and the base-2 logarithm of its natural alignment.
MEMORY = {"v128.load": (0, 4), "v128.load32_splat": (9, 2), "v128.store": (11, 4)}


def assemble(source: str) -> bytes:
    """Return the binary module that the WebAssembly text `source` describes."""
    (module,) = _read(iter(re.findall(r"[()]|[^\s()]+", re.sub(r";;.*", "", re.sub(r'"', "", source)))))
    assert module[0] == "module"
    types, imports, functions, exports, codes = [], [], [], [], []
    for field in module[1:]:
        if field[0] == "import":
            _, space, name, (kind, least) = field
            assert kind == "memory"
            imports.append(_name(space) + _name(name) + b"\x02\x00" + _unsigned(int(least)))
        else:
            assert field[0] == "func"
            parameters, local_types, body, (_, exported) = _function(field)
            types.append(b"\x60" + _vector([bytes([TYPES[kind]]) for kind in parameters.values()]) + _vector([]))
            functions.append(_unsigned(len(types) - 1))
            exports.append(_name(exported) + b"\x00" + _unsigned(len(functions) - 1))
            names = {name: place for place, name in enumerate([*parameters, *local_types])}
            code = _locals(list(local_types.values())) + _instructions(body, names, []) + bytes([END])
            codes.append(_unsigned(len(code)) + code)
    sections = {1: types, 2: imports, 3: functions, 7: exports, 10: codes}
    return MAGIC + b"".join(
        bytes([number]) + _unsigned(len(content)) + content
        for number, content in ((number, _vector(entries)) for number, entries in sections.items())
    )


def _read(tokens: Iterator[str]) -> list[Any]:
    """Return words and nested lists up to the closing bracket, or to the end."""
    expressions: list[Any] = []
    for token in tokens:
        if token == ")":
            break
        expressions.append(_read(tokens) if token == "(" else token)
    return expressions


def _function(field: list) -> tuple[dict[str, str], dict[str, str], list, list[str]]:
    """Return parameters, locals, body and export of a function."""
    heads = {"param": {}, "local": {}}
    body, export = [], []
    for part in field[1:]:
        if part[0] in heads:
            heads[part[0]][part[1]] = part[2]
        elif part[0] == "export":
            export = part
        else:
            body.append(part)
    return heads["param"], heads["local"], body, export


def _instructions(body: list, names: dict[str, int], labels: list[str]) -> bytes:
    return b"".join(_instruction(expression, names, labels) for expression in body)


def _instruction(expression: list, names: dict[str, int], labels: list[str]) -> bytes:
    """Return a folded instruction: its operands, then itself. `labels` are those of the loops around it."""
    head, *rest = expression
    if head == "loop":
        inner = _instructions(rest[1:], names, [*labels, rest[0]])
        return bytes([LOOP, BLOCK_WITHOUT_RESULT]) + inner + bytes([END])
    operands = _instructions([part for part in rest if isinstance(part, list)], names, labels)
    words = [part for part in rest if isinstance(part, str)]
    if head in LOCALS:
        return operands + bytes([LOCALS[head]]) + _unsigned(names[words[0]])
    if head in MEMORY:
        number, alignment = MEMORY[head]
        offset = int(words[0].removeprefix("offset=")) if words else 0
        return operands + bytes([VECTOR]) + _unsigned(number) + _unsigned(alignment) + _unsigned(offset)
    if head == "br_if":
        return operands + b"\x0d" + _unsigned(labels[::-1].index(words[0]))
    if head == "i32.const":
        return b"\x41" + _signed(int(words[0]))
    if head == "v128.const":
        assert words[0] == "i32x4"
        return b"\xfd\x0c" + b"".join(int(word).to_bytes(4, "little", signed=True) for word in words[1:])
    return operands + OPERATORS[head]


def _locals(kinds: list[str]) -> bytes:
    """Return the declaration of locals: runs of equal types."""
    runs: list[list] = []
    for kind in kinds:
        if runs and runs[-1][0] == kind:
            runs[-1][1] += 1
        else:
            runs.append([kind, 1])
    return _vector([_unsigned(count) + bytes([TYPES[kind]]) for kind, count in runs])


def _vector(entries: list[bytes]) -> bytes:
    return _unsigned(len(entries)) + b"".join(entries)


def _name(text: str) -> bytes:
    return _unsigned(len(text)) + text.encode()


def _unsigned(number: int) -> bytes:
    """Return a number in LEB128: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _signed(number: int) -> bytes:
    encoded = bytearray()
    while not -64 <= number < 64:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number & 0x7F])
