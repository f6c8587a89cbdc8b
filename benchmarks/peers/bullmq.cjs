// BullMQ. The twin of `driver.py`, and the adapter: orders come as lines of JSON, each is answered by one.
const fs = require("node:fs");
const readline = require("node:readline");
const { Queue, Worker } = require("bullmq");

const connection = { host: process.env.BENCH_HOST, port: Number(process.env.BENCH_PORT) };
const BATCH = 500;
const TICK_S = 0.04;
const CONCURRENCY = { one: 100, many: 10 };
const now = () => (performance.timeOrigin + performance.now()) / 1000;
const bodyOf = (due) => due.toFixed(6).padStart(17, "0").padEnd(200, "x");
const options = { removeOnComplete: true, removeOnFail: true };
const jobOf = (due) => ({
  name: "handle",
  data: bodyOf(due),
  opts: { ...options, delay: Math.max(0, Math.round((due - now()) * 1000)) },
});

async function bulk(queue, { messages, due_s }) {
  const began = performance.now();
  for (let at = 0; at < messages; at += BATCH) {
    await queue.addBulk(Array.from({ length: Math.min(BATCH, messages - at) }, () => jobOf(due_s)));
  }
  return messages / ((performance.now() - began) / 1000);
}

async function steady(queues, { topics, messages, sending_s, delay_s, whole_s }) {
  const ticks = Math.max(1, Math.round(sending_s / TICK_S));
  const began = now();
  let sent = 0;
  for (let tick = 0; tick < ticks; tick++) {
    const count = Math.floor((messages * (tick + 1)) / ticks) - sent;
    const delays = Array.from({ length: count }, () => delay_s[0] + Math.random() * (delay_s[1] - delay_s[0]));
    await queues[tick % topics].addBulk(delays.map((delay) => jobOf(now() + (whole_s ? Math.round(delay) : delay))));
    sent += count;
    const left = began + (tick + 1) * TICK_S - now();
    if (left > 0) await new Promise((resolve) => setTimeout(resolve, left * 1000));
  }
  return now() - began - sending_s;
}

async function produce(names) {
  const queues = names.map((name) => new Queue(name, { connection }));
  console.log(JSON.stringify("ready"));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const order = JSON.parse(line);
    const answer = "sending_s" in order ? await steady(queues, order) : await bulk(queues[0], order);
    console.log(JSON.stringify(answer));
  }
  await Promise.all(queues.map((queue) => queue.close()));
}

function work(names) {
  const file = `${process.env.BENCH_STAMPS}/${process.pid}.stamps`;
  let notes = [];
  setInterval(() => {
    const buffer = Buffer.alloc(notes.length * 8);
    notes.forEach((value, at) => buffer.writeDoubleLE(value, at * 8));
    notes = [];
    // Opened anew each time: the suite takes away what it has read.
    if (buffer.length > 0) fs.appendFileSync(file, buffer);
  }, 100);
  const handle = async (job) => {
    notes.push(Number(job.data.slice(0, 17)), now());
  };
  const concurrency = names.length === 1 ? CONCURRENCY.one : CONCURRENCY.many;
  for (const name of names) new Worker(name, handle, { connection, concurrency });
}

const names = Array.from({ length: Number(process.env.BENCH_TOPICS ?? "1") }, (_, at) => `queue-${at}`);
if (process.argv[2] === "work") work(names);
else produce(names);
