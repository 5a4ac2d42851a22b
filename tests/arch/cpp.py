"""Reads C++ just well enough for the checks: code without comments and strings, includes, and scopes."""

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<raw>[^()\\ ]*)\(.*?\)(?P=raw)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])*'", re.S)


def strip(text):
    """The text with comments blanked and strings emptied; every line keeps its number."""
    def blank(match):
        token = match.group(0)
        lines = "\n" * token.count("\n")
        return " " + lines if token.startswith("/") else '""' + lines
    return _TOKEN.sub(blank, text)


def includes(text):
    """(line number, path, whether in quotes) of every #include."""
    for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', text, re.M):
        yield text.count("\n", 0, match.start()) + 1, match.group(2), match.group(1) == '"'


@dataclass
class Statement:
    line: int
    text: str       # up to its ; or {, without what stands inside braces
    scope: str      # where it stands: namespace, type, function or initializer
    opens: str      # what it opens: "" for a statement that ends with ;
    end_line: int = 0


_TYPE = re.compile(r"\b(class|struct|union|enum)\b(?![^<]*>)[^()=]*$")


def _kind(text, scope):
    """What the brace after `text` opens."""
    if re.search(r"\bnamespace\b", text) or re.match(r'extern\s*""\s*$', text):
        return "namespace"
    bare = re.sub(r"^template\s*<.*?>\s*(?=class|struct|union)", "", text)
    bare = re.sub(r"(\[\[.*?\]\]|\b(?:alignas|__attribute__)\s*\(+[^()]*\)+)", "", bare)
    if _TYPE.search(bare):
        return "type"
    if scope in ("function", "initializer"):
        return "initializer" if re.search(r"[=,({]\s*$|\breturn\b", text) else "function"
    if "operator" in text or (")" in text and not re.search(r"(?<![=!<>])=(?!=)[^)]*$", text)):
        return "function"
    return "initializer"


def statements(code):
    """The statements of stripped code, each with the scope that it stands in."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", code, flags=re.M)
    open_ones, text, line, start = [], "", 1, 1
    for char in code:
        if char == "\n":
            line += 1
        scope = open_ones[-1].opens if open_ones else "namespace"
        if char == "{":
            opened = Statement(start, " ".join(text.split()), scope, _kind(text.strip(), scope))
            open_ones.append(opened)
            if opened.opens != "initializer":
                text = ""
        elif char == "}":
            if not open_ones:
                continue
            closed = open_ones.pop()
            closed.end_line = line
            if closed.opens != "initializer":
                text = ""
                yield closed
        elif char == ";" and scope != "initializer":
            yield Statement(start, " ".join(text.split()), scope, "", line)
            text = ""
        elif scope != "initializer":
            text += char
        if not text.strip():
            start = line


_NOT_VARIABLE = re.compile(
    r"^(using|typedef|friend|static_assert|template|class|struct|union|enum|namespace|extern \"\"|public"
    r"|private|protected|return|asm|goto|case|default|concept|requires|[A-Z][A-Z0-9_]*\s*\()")


def mutable_statics(code):
    """(line, text) of variables that live as long as the process and can change."""
    for each in statements(code):
        if each.opens not in ("", "initializer"):
            continue
        text = re.sub(r"(\[\[.*?\]\]|\balignas\s*\([^()]*\)|__attribute__\s*\(\(.*?\)\)\s*)", "", each.text)
        text = re.sub(r"^(public|private|protected)\s*:\s*", "", text).strip()
        is_static = re.match(r"(inline\s+)?(static|thread_local)\b", text) is not None
        if each.scope in ("type", "function", "initializer") and not is_static:
            continue
        if not text or _NOT_VARIABLE.match(text) or not re.match(r"[\w:]", text):
            continue
        declared = re.split(r"(?<![=!<>])=(?!=)", text)[0]
        plain = re.sub(r"<[^<>]*(?:<[^<>]*>[^<>]*)*>", "", declared)
        if "(" in plain or re.search(r"\b(const|constexpr|operator)\b", plain):
            continue
        if len(re.findall(r"[\w:]+", plain)) >= 2:
            yield each.line, each.text


def functions(code):
    """(first line, last line, head) of every function body that stands in a namespace or a type."""
    for each in statements(code):
        if each.opens == "function" and each.scope in ("namespace", "type"):
            yield each.line, each.end_line, each.text
