// Uses each call that most programs need, by the types that openapi-typescript makes: node client.js URL TOPIC
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

declare const process: { argv: string[] };

const [url, topic] = process.argv.slice(2) as [string, string];
const client = createClient<paths>({ baseUrl: url });
const asBytes = { headers: { "content-type": "application/octet-stream" }, bodySerializer: (body: unknown) => body as Blob };

function expect(found: unknown, expected: unknown): void {
  const [left, right] = [JSON.stringify(found), JSON.stringify(expected)];
  if (left !== right) throw new Error(`expected ${right}; got ${left}`);
}

function done<T>(answer: { data?: T; error?: components["schemas"]["Problem"] }): T {
  if (answer.data === undefined) throw new Error(answer.error?.detail);
  return answer.data;
}

const inTopic = { path: { topic } };
const sent = done(await client.POST("/v1/topics/{topic}/messages", { params: inTopic, body: { id: "json", body: { n: 1 } } }));
expect("outcome" in sent && sent.outcome, "sent");
const logo = { path: { topic, id: "logo/é" }, query: { delay: "1h", header: ["source=camera"] } };
const put = await client.PUT("/v1/topics/{topic}/messages/{id}", { params: logo, body: "\u0000é", ...asBytes });
expect(done(put).outcome, "sent");
const raw = await client.POST("/v1/topics/{topic}/messages", { params: inTopic, body: "raw", ...asBytes });
expect(raw.response.status, 201);

const found = done(await client.GET("/v1/topics/{topic}/messages/{id}", { params: { path: logo.path } }));
expect([found.state, found.body, found.headers?.["source"]], ["waiting", "\u0000é", "camera"]);
const waiting = { ...inTopic, query: { state: "waiting" as const } };
const listed = done(await client.GET("/v1/topics/{topic}/messages", { params: waiting }));
expect(listed.messages.map((message) => message.id), [logo.path.id]);

const reader = { path: { topic, group: "billing" } };
const read = async (): Promise<components["schemas"]["Delivery"]> => {
  const path = "/v1/topics/{topic}/groups/{group}/read";
  const { deliveries } = done(await client.POST(path, { params: reader, body: { limit: 1, wait: 20, bodies: "json" } }));
  if (deliveries[0] === undefined) throw new Error("there is no delivery");
  return deliveries[0];
};
const first = await read();
expect([first.id, first.attempt, first.body_json], ["json", 1, { n: 1 }]);
expect(done(await client.POST("/v1/ack", { body: { receipts: [first.receipt] } })).outcomes, ["acked"]);
const second = await read();
expect(second.body, "raw");
const failed = { receipts: [second.receipt], delay: 0, error: "no room" };
expect(done(await client.POST("/v1/nack", { body: failed })).outcomes, ["retry"]);
expect((await read()).attempt, 2);

const missing = await client.GET("/v1/topics/{topic}/messages/{id}", { params: { path: { topic, id: "none" } } });
expect(missing.error?.type, "urn:lisa:problem:unknown-message");
