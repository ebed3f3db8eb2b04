// Call a handler of a service and await its result, as JSON: "Calls" in docs/wire.md, in JavaScript.
//     node call.mjs orders o-17 add '["cup"]'
import { randomBytes } from "node:crypto";
import { blake3 } from "@noble/hashes/blake3.js";
import { connect, headers } from "nats";

function ulid(bytes) {
  let [number, text] = [BigInt(`0x${Buffer.from(bytes).toString("hex")}`), ""];
  for (; text.length < 26; number >>= 5n) text = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"[Number(number & 31n)] + text;
  return text;
}
const digest = (...words) => blake3(Buffer.from(words.join("\0")), { dkLen: 16 });
const now = Buffer.alloc(6);
now.writeUIntBE(Date.now(), 0, 6);

// Ids follow from names. The request's id is new, and the same each time it is repeated.
const [service, key, handler, given] = process.argv.slice(2);
const [workspaceId, changeSetId] = [digest("rebaser service", service), digest("rebaser key", service, key)].map(ulid);
const [id, inbox] = [ulid(Buffer.concat([now, randomBytes(10)])), `_INBOX.${ulid(randomBytes(16))}`];
const call = { id, workspaceId, changeSetId, service, key, handler, arguments: JSON.parse(given ?? "[]") };
const [subject, body] = [`${workspaceId}.${changeSetId}`, JSON.stringify({ v1: call })];
const said = headers();
said.set("X-CONTENT-TYPE", "application/json");
said.set("X-MESSAGE-TYPE", "CallRequest");
said.set("X-MESSAGE-VERSION", "1");
said.set("Nats-Msg-Id", `${id}.${ulid(digest(subject, body))}`);
said.set("X-Reply-Inbox", inbox);

const nc = await connect({ servers: process.env.REBASER_NATS__URL ?? "nats://127.0.0.1:4222" });
const [js, answers] = [nc.jetstream(), nc.subscribe(inbox, { max: 1 })];
/** Until it is confirmed: under one id, any number takes effect once. */
async function store(tries = 10) {
  await js.publish(`rebaser.requests.${subject}`, body, { headers: said }).catch((error) => {
    if (error.api_error || tries === 1) throw error;
    return store(tries - 1);
  });
}
await store();
// "There is work", until there is an answer. It is refused where a task is there: all is well.
const wake = () => js.publish(`rebaser.tasks.${subject}.process`).catch(() => {});
await wake();
const again = setInterval(wake, 10_000);
for await (const answer of answers) {
  const [{ status }] = Object.values(answer.json());
  console.log(JSON.stringify(status.success?.result ?? status.error));
}
clearInterval(again);
await nc.drain();
