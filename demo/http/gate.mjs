// The gates of an airport in Node, without any package. Arguments: journal, topic, gateways.
import { appendFileSync, writeFileSync } from "node:fs";
import http from "node:http";

const [journal, topic, ...gateways] = process.argv.slice(2);
const note = (event) => appendFileSync(journal, JSON.stringify(event) + "\n");

function request(name, parameters) {
  const gateway = gateways[Math.floor(Math.random() * gateways.length)];
  const body = new URLSearchParams(parameters).toString();
  const headers = { "Content-Type": "application/x-www-form-urlencoded", "Content-Length": Buffer.byteLength(body) };
  return new Promise((resolve, reject) => {
    const call = http.request(`http://${gateway}/camellia/delayQueue/${name}`, { method: "POST", headers }, (reply) => {
      const parts = [];
      reply.on("data", (part) => parts.push(part));
      reply.on("end", () => resolve(JSON.parse(Buffer.concat(parts).toString())));
      reply.on("error", reject);
    });
    call.setTimeout(10000, () => call.destroy(new Error("timeout")));
    call.on("error", reject);
    call.end(body);
  });
}

async function call(name, parameters) {
  for (;;) {
    try {
      const answer = await request(name, parameters);
      if (answer.code !== 500) return answer;
    } catch (error) {
      console.error(`${name}: ${error.message}`);
    }
    await new Promise((done) => setTimeout(done, 100));
  }
}

writeFileSync(journal, "");
for (;;) {
  const answer = await call("longPollingMsg", { topic, batch: 5, ackTimeoutMillis: 2000, longPollingTimeoutMillis: 2000 });
  const at = Date.now();
  for (const m of answer.delayMsgList) note({ begun: m.msgId, attempt: m.retry, due: m.triggerTime, at });
  for (const m of answer.delayMsgList) {
    await call("ackMsg", { topic, msgId: m.msgId, ack: "true" });
    note({ acked: m.msgId, attempt: m.retry, ack: true });
  }
}
