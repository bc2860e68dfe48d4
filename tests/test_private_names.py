"""Private names of torch stand in `trimtab/_torch.py` only, by the syntax tree of each file."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

SOURCE = Path(__file__).parents[1] / "src" / "trimtab"
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "_torch.py"]

DOCUMENTED = {"os._exit", "sys._getframe", "sys._current_frames", "_thread"}
"""Names of the standard library that begin with an underscore and are documented."""
OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}

_OPTIMIZER = torch.optim.SGD([torch.zeros(1)])
_THEIRS = (nn.Module(), nn.Conv2d(1, 1, 1), torch.zeros(1), _OPTIMIZER)
TORCHS = {name for each in _THEIRS for name in dir(each) if name.startswith("_")}
"""Private names of torch's objects: ours only where a class of ours that is not a subclass of theirs defines them."""
TORCHS_MODULE = re.compile(r"torch(\.\w+)*\._[a-zA-Z][\w.]*")


def is_private(name: str) -> bool:
    return name.startswith("_") and name not in OF_NAMED_TUPLES and not re.fullmatch(r"_|__\w+__", name)


class Classes:
    """What the classes of a source tree define, by the class's name."""

    def __init__(self, trees: list[ast.Module]) -> None:
        self.nodes = {n.name: n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}

    def bases(self, node: ast.ClassDef) -> list[str]:
        kinds = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        return [ast.unparse(kind).rpartition(".")[2] for kind in kinds]

    def defines(self, node: ast.ClassDef, name: str) -> bool:
        """Whether a class, or a class of ours that it derives from, defines an attribute."""
        if name in _definitions(node):
            return True
        return any(self.defines(self.nodes[b], name) for b in self.bases(node) if b in self.nodes and b != node.name)

    def is_torchs(self, node: ast.ClassDef) -> bool:
        """Whether it derives from a class that is not ours."""
        ours = [self.nodes[base] for base in self.bases(node) if base in self.nodes and base != node.name]
        return len(ours) < len(self.bases(node)) or any(map(self.is_torchs, ours))


def _definitions(node: ast.ClassDef) -> set[str]:
    found = set()
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            found.add(each.name)
        elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and _is_self(each.value):
            found.add(each.attr)
    for each in node.body:
        targets = each.targets if isinstance(each, ast.Assign) else [each.target] if hasattr(each, "target") else []
        found.update(target.id for target in targets if isinstance(target, ast.Name))
        if isinstance(each, ast.Assign) and _is_slots(each):
            found.update(ast.literal_eval(each.value))
    return found


def _is_torchs_name(value: object) -> bool:
    """Whether a constant is a private name of torch, by which something could be looked up."""
    return isinstance(value, str) and bool(TORCHS_MODULE.fullmatch(value) or (value in TORCHS and is_private(value)))


def _is_slots(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__slots__" for t in node.targets)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_names(tree: ast.Module, classes: Classes) -> Iterator[tuple[int, str]]:
    """The line and text of each use of a private name of somebody else."""
    no_names = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}  # docstrings, and what is in __slots__
    no_names |= {id(n) for each in ast.walk(tree) if _is_slots(each) for n in ast.walk(each)}
    waiting: list[tuple[ast.AST, ast.ClassDef | None]] = [(tree, None)]
    while waiting:
        node, owner = waiting.pop()
        inside = node if isinstance(node, ast.ClassDef) else owner
        waiting += [(child, inside) for child in ast.iter_child_nodes(node)]
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if ast.unparse(node) in DOCUMENTED or _is_ours(node, owner, classes):
                continue
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if module.split(".")[0] != "trimtab":
                parts = [part for alias in node.names for part in [*module.split("."), *alias.name.split(".")]]
                if any(is_private(part) and part not in DOCUMENTED for part in parts):
                    yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr", "delattr"):
            if isinstance(name := node.args[1], ast.Constant) and is_private(str(name.value)):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Constant) and id(node) not in no_names and _is_torchs_name(node.value):
            yield node.lineno, repr(node.value)


def _is_ours(node: ast.Attribute, owner: ast.ClassDef | None, classes: Classes) -> bool:
    """Whether the class in which the attribute is used defines it."""
    if owner is None or not classes.defines(owner, node.attr):
        return False
    return node.attr not in TORCHS or (_is_self(node.value) and not classes.is_torchs(owner))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


CLASSES = Classes([parsed(path) for path in SOURCE.rglob("*.py")])


def test_no_private_name_of_somebody_else() -> None:
    assert SOURCE / "bnp" / "preconditioner.py" in FILES
    found = {path.relative_to(SOURCE).as_posix(): list(private_names(parsed(path), CLASSES)) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}


FOREIGN = [
    "torch._foreach_add_(a, b)",
    "x = tensor._base",
    "x = tensor._version",
    "module._parameters['weight']",
    "nn.modules.batchnorm._BatchNorm",
    "from torch.nn.modules.batchnorm import _BatchNorm",
    "import torch._dynamo",
    "from torch._dynamo import config",
    "getattr(model, '_orig_mod', None)",
    "'torch._dynamo' in sys.modules",
    "attrgetter('_version')(x)",
    "vars(module)['_parameters']",
    "module.__dict__.get('_modules')",
    "[getattr(layer, name) for name in ('forward', '_conv_forward')]",
    "class A(nn.Module):\n    def f(self): return self._parameters",
    "class A(nn.Module):\n    def f(self): self._modules = {}",
    "class A:\n    def __init__(self): self._version = 1\n    def f(self, x): return x._version",
    "class A:\n    def f(self, x): return x._hidden",
    "def f(x): return x._hidden",
]
OURS = [
    "import torch",
    "from trimtab import _torch",
    "x.__dict__",
    "sys._getframe(1)",
    "class A:\n    def __init__(self): self._x = 1\n    def same(self, other): return self._x == other._x",
    "class A(nn.Module):\n    def _own(self): pass\n    def forward(self): return self._own()",
    "class A:\n    def _x(self): pass\nclass B(A):\n    def f(self): return self._x()",
    "class A:\n    def __init__(self): self._parameters = []\n    def f(self): return self._parameters",
    '"""Of torch._dynamo."""',
    "class A:\n    __slots__ = ('_version',)\n    def f(self): return self._version",
]


@pytest.mark.parametrize("code", FOREIGN)
def test_what_is_found(code: str) -> None:
    tree = ast.parse(code)
    assert list(private_names(tree, Classes([tree])))


@pytest.mark.parametrize("code", OURS)
def test_what_is_not_found(code: str) -> None:
    tree = ast.parse(code)
    assert not list(private_names(tree, Classes([tree])))
