// Enqueue a batch as JSON, await the reply, and read what was computed: docs/wire.md in JavaScript.
import { randomBytes } from "node:crypto";
import { connect, headers } from "nats";

const ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/** 48 bits of milliseconds and 80 of chance, five bits a character. */
function ulid() {
  let number = (BigInt(Date.now()) << 80n) | BigInt(`0x${randomBytes(10).toString("hex")}`);
  let text = "";
  for (; text.length < 26; number >>= 5n) text = ALPHABET[Number(number & 31n)] + text;
  return text;
}

function said(type, id, more = {}) {
  const all = headers();
  const own = { "X-CONTENT-TYPE": "application/json", "X-MESSAGE-TYPE": type, "X-MESSAGE-VERSION": "1" };
  for (const [name, value] of Object.entries({ ...own, "Nats-Msg-Id": id, ...more })) all.set(name, value);
  return all;
}

/** Until it is confirmed: the same id as often as one likes takes effect once. */
async function confirmed(publish) {
  for (let tries = 1; ; tries++) {
    try {
      return await publish();
    } catch (error) {
      if (error.api_error || tries === 10) throw error; // an answer, though not the one we wanted
    }
  }
}

const nc = await connect({ servers: process.env.REBASER_NATS__URL ?? "nats://127.0.0.1:4222" });
const js = nc.jetstream();
const [workspaceId, changeSetId, id] = [ulid(), ulid(), ulid()];
const [add, net, tax, gross] = [ulid(), ulid(), ulid(), ulid()];
const subject = `${workspaceId}.${changeSetId}`;

// 1. Where the answer shall go. The content type of the request is that of the answer.
const inbox = `_INBOX.${ulid()}`;
const answer = (async () => {
  for await (const message of nc.subscribe(inbox, { max: 1, timeout: 60_000 })) return message.json();
})();

// 2. The request: stored once it is confirmed.
const request = {
  id, workspaceId, changeSetId,
  updatesAddress: { inline: { updates: [
    { putFunc: { funcId: add, name: "add", runtime: "builtin", code: "sum" } },
    { putValue: { valueId: net, name: "net", value: 100 } },
    { putValue: { valueId: tax, name: "tax", value: 19 } },
    { putValue: { valueId: gross, name: "gross", funcId: add, inputs: { values: [net, tax] } } },
  ] } },
};
const requestHeaders = said("EnqueueUpdatesRequest", id, { "X-Reply-Inbox": inbox });
await confirmed(() =>
  js.publish(`rebaser.requests.${subject}`, JSON.stringify({ v1: request }), { headers: requestHeaders }),
);

// 3. The task: "there is work". That there is one already is success, too.
try {
  await confirmed(() => js.publish(`rebaser.tasks.${subject}.process`));
} catch (error) {
  if (error.api_error?.err_code !== 10077) throw error;
}

// 4. The answer is final.
const { status } = (await answer).v2;
if (status.error) throw new Error(status.error.message);
console.log("committed:", status.success.commit);

// 5. Read what is computed from it, from any Rebaser, as soon as it is.
for (;;) {
  const query = { id: ulid(), workspaceId, changeSetId, which: ["gross"], inputs: 0, dependents: 0 };
  const reply = await nc.request(`rebaser.values.${subject}`, JSON.stringify({ v1: query }), {
    headers: said("ValuesQuery", query.id), timeout: 10_000,
  });
  const [found] = reply.json().v1.values;
  if (found.status !== "pending") {
    console.log("gross:", found.value);
    break;
  }
  await new Promise((resolve) => setTimeout(resolve, 100));
}
console.log("in change set:", workspaceId, changeSetId);
await nc.drain();
