"""Tests stand where their modules stand: extproc/<room>/<module>.py is tested by tests/extproc/<room>/test_<module>.py.

A package with code of its own, the `__init__` of <room>, is tested by tests/extproc/<room>/test_<room>.py. What differs
stands in one of the two lists below with its reason. An entry that is no longer needed fails too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.paths import ROOT

PACKAGES: Final = ("extproc", "loadgen")

# Test files that mirror no module: what they test is more than one.
WIDER: Final = {
    "extproc/index/test_memory_bound.py": "what docs/performance.md says of the memory of index and mirror",
    "extproc/app/test_process.py": "`python -m extproc` as a process",
    "extproc/config/test_checks.py": "every check, by an Envoy YAML that it refuses",
    "extproc/config/test_models.py": "checks of several files: the model chooses the pool",
    "extproc/index/test_contract.py": "one contract for every backend",
    "extproc/kv_events/test_fixtures_hits.py": "the whole event side against recordings of engines",
    "extproc/processor/test_forged_answers.py": "what a stranger at the gRPC port can change, in all parts together",
    "extproc/processor/test_stored_responses.py": "the exchange and the router: who keeps a stored response",
    "extproc/prompts/test_recorded_apis.py": "requests and renderer against recorded prompts",
    "extproc/routing/policies/test_baselines.py": "every policy but SMetric, on worked numbers",
    "extproc/routing/policies/test_laws.py": "what every policy must keep",
    "extproc/routing/test_no_false_hits.py": "events, index, hints and router together against recordings",
    "extproc/routing/test_router_halves.py": "the router over pools with prefill and decode instances",
    "loadgen/engine/test_against_vllm.py": "the engine model against recorded runs of vLLM",
    "loadgen/engine/test_process.py": "a simulated engine as a process",
    "loadgen/engine/test_prompts.py": "template, normaliser and tokenizer together, against vLLM",
    "loadgen/paper/test_paper.py": "the reproduction from its settings to its document",
    "loadgen/report/test_report.py": "a report from its files to its page",
    "loadgen/replay/test_replay_hostile.py": "the replay against servers that misbehave",
    "loadgen/replay/test_replay_live.py": "the replay through a real Envoy",
    "loadgen/simulation/test_agreement.py": "simulation and live stack agree",
}

# Modules without a test file of their own (globs), by the test file or folder that runs them, and why there.
ELSEWHERE: Final = {
    # They do nothing by themselves: values, names, tables.
    "tests/extproc (values and names)": [
        "extproc/__init__.py",
        "extproc/base/errors.py",
        "extproc/base/headers.py",
        "extproc/base/model.py",
        "extproc/kv_events/actions.py",
        "extproc/processor/messages.py",
    ],
    "tests/loadgen (values and names)": [
        "loadgen/command_error.py",
        "loadgen/commands/__init__.py",
        "loadgen/demo/words.py",
        "loadgen/engine/errors.py",
        "loadgen/json_types.py",
        "loadgen/simulation/__init__.py",
        "loadgen/simulation/scenario.py",
        "loadgen/workloads/trace.py",
    ],
    # A command, or what only a whole process shows.
    "tests/extproc/app/test_process.py (the process)": [
        "extproc/__main__.py",
        "extproc/app/*.py",
    ],
    "tests/extproc/cli/test_command_line.py (its entry point)": ["extproc/cli/__init__.py"],
    "tests/loadgen/test_cli.py (every command)": ["loadgen/__main__.py", "loadgen/commands/*.py"],
    "tests/epp/test_tls.py (through a real handshake)": ["extproc/processor/tls.py"],
    "tests/epp/test_response.py (as Envoy reads it)": ["extproc/processor/destination.py"],
    # One test for a family: a case is a document, a request, a recording or a file of that family.
    "tests/extproc/config/test_checks.py (a case is an Envoy YAML)": ["extproc/config/checks/*.py"],
    "tests/extproc/config/test_config.py (a case is an Envoy YAML)": ["extproc/config/*.py"],
    "tests/extproc/index/test_contract.py (every backend)": ["extproc/index/__init__.py"],
    "tests/extproc/index/test_redis.py (with a real Redis)": [
        "extproc/index/answers.py",
        "extproc/index/redis_names.py",
        "extproc/index/writes.py",
    ],
    "tests/extproc/instances/test_health_checks.py (rules and their use)": ["extproc/instances/health_rules.py"],
    "tests/extproc/kv_events/engines (each adapter)": [
        "extproc/kv_events/engines/__init__.py",
        "extproc/kv_events/engines/msgpack.py",
    ],
    "tests/extproc/kv_events/test_mirror.py (what the mirror consists of)": [
        "extproc/kv_events/block_tree.py",
        "extproc/kv_events/stored_blocks.py",
    ],
    "tests/extproc/prompts/test_renderer.py (against prompts that vLLM rendered)": [
        "extproc/prompts/message_shapes.py",
        "extproc/prompts/reply_marks.py",
        "extproc/prompts/template_probes.py",
    ],
    "tests/extproc/prompts/tokenizer/test_vocabulary.py (tokenizer.json as a whole)": [
        "extproc/prompts/tokenizer/files.py",
        "extproc/prompts/tokenizer/normalizer.py",
    ],
    "tests/extproc/prompts/test_recorded_apis.py (a case is a request)": ["extproc/requests/*.py"],
    "tests/extproc/routing/policies (the laws and worked numbers)": ["extproc/routing/policies/*.py"],
    "tests/extproc/routing/pools/test_speculation.py (a fact is what it hears)": ["extproc/base/facts.py"],
    "tests/loadgen/demo/test_demo.py (the demo as a process)": [
        "loadgen/demo/kept.py",
        "loadgen/demo/watch.py",
        "loadgen/engine/request_log.py",
    ],
    "tests/loadgen/engine/test_process.py (over HTTP and ZMQ)": [
        "loadgen/engine/clock.py",
        "loadgen/engine/completion.py",
        "loadgen/engine/http.py",
        "loadgen/engine/metrics.py",
        "loadgen/engine/options.py",
        "loadgen/engine/publisher.py",
        "loadgen/engine/reply.py",
        "loadgen/engine/server.py",
    ],
    "tests/loadgen/engine/test_apis.py (a case is a recorded request)": [
        "loadgen/engine/anthropic_api.py",
        "loadgen/engine/api_parts.py",
        "loadgen/engine/chat_answers.py",
        "loadgen/engine/completions_api.py",
        "loadgen/engine/responses_api.py",
    ],
    "tests/loadgen/engine/test_against_vllm.py (hashes and tokens as recorded)": [
        "loadgen/engine/block_keys.py",
        "loadgen/engine/tokenizer.py",
    ],
    "tests/loadgen/engine/test_prompts.py (the prompt as recorded)": ["loadgen/engine/chat_template.py"],
    "tests/loadgen/engine/test_transfer.py (from prefill to decode)": ["loadgen/engine/sidecar.py"],
    "tests/loadgen/paper/test_paper.py (from settings to document)": ["loadgen/paper/*.py"],
    "tests/loadgen/replay/test_replay.py (against a chat server)": ["loadgen/replay/*.py"],
    "tests/loadgen/report/test_report.py (every figure and table)": [
        "loadgen/report/*.py",
        "loadgen/report/figures/*.py",
    ],
    "tests/loadgen/replay/test_replay.py (rows are written and read)": ["loadgen/results/records.py"],
    "tests/loadgen/simulation/sweeps/test_sweep.py (a sweep runs them)": ["loadgen/simulation/sweeps/*.py"],
    "tests/loadgen/simulation/test_cluster.py (a scenario runs them)": [
        "loadgen/simulation/feasibility.py",
        "loadgen/simulation/run_info.py",
    ],
    "tests/loadgen/stack/test_stack.py (real processes)": ["loadgen/stack/*.py"],
    "tests/loadgen/study/test_measures.py (a study as a whole)": ["loadgen/study/*.py"],
    "tests/loadgen/workloads/test_synthetic.py (profiles are drawn)": [
        "loadgen/workloads/profiles.py",
        "loadgen/workloads/scaling.py",
    ],
    "tests/loadgen/workloads/imports (every source)": [
        "loadgen/workloads/imports/keys.py",
        "loadgen/workloads/imports/sessions.py",
    ],
    "tests/loadgen/workloads/traces/test_traces.py (a case is a file of a format)": ["loadgen/workloads/traces/*.py"],
}


def _mirror(module: Path) -> Path:
    """Where the test file of a module stands, relative to tests/."""
    package = module.name in {"__init__.py", "__main__.py"}
    return module.with_name(f"test_{module.parent.name if package else module.stem}.py")


def _modules() -> Iterator[Path]:
    """Every module that has more than a docstring, relative to the repository."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if len(ast.parse(path.read_text()).body) > 1:
                yield path.relative_to(ROOT)


MIRRORED: Final = {module: _mirror(module) for module in _modules()}
TESTS: Final = {
    path.relative_to(ROOT / "tests") for package in PACKAGES for path in (ROOT / "tests" / package).rglob("test_*.py")
}
UNMIRRORED: Final = {module for module, test in MIRRORED.items() if test not in TESTS}


def test_every_test_file_stands_where_its_module_stands() -> None:
    """A test file mirrors a module, or says in WIDER what it tests instead."""
    wider = {str(test) for test in TESTS - set(MIRRORED.values())}
    assert wider - WIDER.keys() == set(), "name the file after its module, or list it in WIDER with a reason"
    assert WIDER.keys() - wider == set(), "these mirror a module or are gone: take them out of WIDER"


def test_every_module_has_its_test_file() -> None:
    """A module is mirrored by a test file, or ELSEWHERE says which test runs it."""
    listed = {module for globs in ELSEWHERE.values() for glob in globs for module in UNMIRRORED if module.match(glob)}
    assert UNMIRRORED - listed == set(), "add the test file, or list the module in ELSEWHERE with a reason"


def test_no_entry_is_out_of_date() -> None:
    """An entry of ELSEWHERE names a test that exists and a module without a test file: else it goes."""
    for where, globs in ELSEWHERE.items():
        assert (ROOT / where.partition(" ")[0]).exists(), where
        idle = [glob for glob in globs if not any(module.match(glob) for module in UNMIRRORED)]
        assert not idle, f"{idle}: each has its test file or is gone"
