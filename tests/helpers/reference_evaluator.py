"""An evaluator of blobs that is slow, and plain enough to be seen to be right."""

import json
from itertools import islice
from typing import Any

from rebaser_server.compute.functions.builtin import BUILTINS
from rebaser_server.compute.json_values import NotJson, read_only
from rebaser_server.compute.units.work_unit import BLOCKED, FAILED, OK, Blob
from rebaser_server.values.canonical_json import text_of


def independently(blob: Blob) -> tuple[list[dict[str, Any]], int]:
    """What becomes of a blob, by nothing of the evaluator but the functions themselves."""
    count, texts = len(blob), [*blob.texts.to_pylist(), *blob.constant_texts.to_pylist()]
    ids = [*blob.ids.to_pylist(), *blob.constant_ids.to_pylist()]
    known = [*(blob.statuses == OK).tolist(), *blob.constant_known.tolist()]
    changed = [False] * len(texts)
    rows, recomputed, refs = [], 0, iter(blob.refs.tolist())
    for place in range(count):
        function, shape = blob.signatures[blob.calls[place]]
        places = [[ref if ref >= 0 else count + ~ref for ref in islice(refs, n or n is None)]
                  for _, n in shape]  # fmt: skip
        taken = [each for argument in places for each in argument]
        if not blob.forced[place] and not any(changed[each] for each in taken):
            continue
        recomputed += 1
        try:
            blocking = [ids[each] for each in taken if not known[each]]
            if blocking:
                status, text = BLOCKED, blocking[0]
            else:
                given = {
                    name: [json.loads(texts[each]) for each in argument]
                    for (name, _), argument in zip(shape, places, strict=True)
                }
                single = {name: given[name][0] for name, n in shape if n is None}
                value = BUILTINS[blob.functions[function][1]](**{**given, **single})
                status, text = OK, text_of(read_only(value))
        except Exception as error:  # noqa: BLE001 - as an evaluation would
            wrong = "the result cannot be a value: " * isinstance(error, NotJson)
            status, text = FAILED, f"{wrong or type(error).__name__ + ': '}{error}"
        if (status, text) != (blob.statuses[place], texts[place]):
            rows.append({"id": ids[place], "status": status, "text": text, "place": place})
            changed[place] = OK in (status, blob.statuses[place])
            known[place], texts[place] = status == OK, text
    return rows, recomputed
