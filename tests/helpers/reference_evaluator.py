"""An evaluator of units that is slow, and plain enough to be seen to be right."""

import json
from itertools import islice
from typing import Any

from rebaser_server.compute.functions.builtin import BUILTINS
from rebaser_server.compute.json_values import NotJson, read_only
from rebaser_server.compute.work_unit import BLOCKED, FAILED, OK, WorkUnit
from rebaser_server.values.canonical_json import dumps


def independently(unit: WorkUnit) -> tuple[list[dict[str, Any]], int]:
    """What becomes of a unit, by nothing of the evaluator but the functions themselves."""
    count, texts = len(unit), [*unit.texts.to_pylist(), *unit.constant_texts.to_pylist()]
    ids = [*unit.ids.to_pylist(), *unit.constant_ids.to_pylist()]
    known = [*(unit.statuses == OK).tolist(), *unit.constant_known.tolist()]
    changed = [False] * len(texts)
    rows, recomputed, refs = [], 0, iter(unit.refs.tolist())
    for position in range(count):
        function, shape = unit.signatures[unit.signature_indices[position]]
        positions = [[ref if ref >= 0 else count + ~ref for ref in islice(refs, n or n is None)]
                  for _, n in shape]  # fmt: skip
        taken = [each for argument in positions for each in argument]
        if not unit.must_compute[position] and not any(changed[each] for each in taken):
            continue
        recomputed += 1
        try:
            blocking = [ids[each] for each in taken if not known[each]]
            if blocking:
                status, text = BLOCKED, blocking[0]
            else:
                given = {
                    name: [json.loads(texts[each]) for each in argument]
                    for (name, _), argument in zip(shape, positions, strict=True)
                }
                single = {name: given[name][0] for name, n in shape if n is None}
                value = BUILTINS[unit.functions[function][1]](**{**given, **single})
                status, text = OK, dumps(read_only(value))
        except Exception as error:  # noqa: BLE001 - as an evaluation would
            wrong = "the result cannot be a value: " * isinstance(error, NotJson)
            status, text = FAILED, f"{wrong or type(error).__name__ + ': '}{error}"
        if (status, text) != (unit.statuses[position], texts[position]):
            rows.append({"id": ids[position], "status": status, "text": text, "place": position})
            changed[position] = OK in (status, unit.statuses[position])
            known[position], texts[position] = status == OK, text
    return rows, recomputed
