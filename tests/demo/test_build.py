"""The folder that `looped demo` writes."""

import base64
import json
import re
import webbrowser

import pytest

from looped.cli.demo import demo as demo_command
from looped.demo.build import LARGEST_PAGE, PAGE, WORKER, bundle
from looped.utils.shipped import shipped_path
from tests.demo.reference import SHIPPED
from tests.refusal import refused


def test_page_is_small_and_needs_nothing_else(demo):
    text = demo.page.read_text("utf-8")
    assert demo.page_bytes == demo.page.stat().st_size <= LARGEST_PAGE
    assert any(name.startswith("sudoku/") for name in demo.inside)
    assert "<!--" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)  # every part was put in
    assert not re.findall(r'(?:src|href)="(?!data:|#|https://arxiv\.org/)[^"]*"', text)


def test_every_shipped_model_but_the_language_models_is_inside_or_beside(demo):
    assert sorted(demo.inside + demo.beside) == SHIPPED
    text = demo.page.read_text("utf-8")
    for name in demo.inside:
        assert f'id="model {name}">{_base64(name)}<' in text
    for name in demo.beside:
        script = demo.page.parent / "models" / f"{name.replace('/', '-')}.js"
        assert script.read_text("utf-8") == f'loopedModel("{name}", "{_base64(name)}");\n'


def _base64(name):
    return base64.b64encode(shipped_path(name).read_bytes()).decode()


def test_page_offers_new_puzzles_of_every_level(demo):
    text = demo.page.read_text("utf-8")
    data = json.loads(re.search(r'id="page-data">(.*?)</script>', text)[1])
    for level in ("easy", "medium", "hard"):
        assert len(set(data["puzzles"][level])) >= 10


@pytest.mark.parametrize("modules", [PAGE, WORKER], ids=["page", "worker"])
def test_bundle_has_every_name_once(node, tmp_path, modules):
    code = bundle(modules)
    assert not re.search(r"^(import|export) ", code, flags=re.MULTILINE)
    assert "</script" not in code
    declared = re.findall(r"^(?:async )?(?:const|let|function|class) (\w+)", code, flags=re.MULTILINE)
    assert len(declared) == len(set(declared))


def test_demo_command_writes_the_folder_and_opens_the_page(tmp_path, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    demo_command(["--out", str(tmp_path / "a"), "--json"])
    about = json.loads(capsys.readouterr().out)
    assert about["page"] == str(tmp_path / "a" / "index.html")
    assert opened == [(tmp_path / "a" / "index.html").as_uri()]
    demo_command(["--out", str(tmp_path / "a"), "--no-open"])  # again over what is there
    assert len(opened) == 1
    assert (tmp_path / "a" / "index.html").exists()


def test_demo_command_refuses_a_file_in_the_way(tmp_path):
    (tmp_path / "a").write_text("")
    with refused(None, tmp_path / "a"):
        demo_command(["--out", str(tmp_path / "a"), "--no-open"])
