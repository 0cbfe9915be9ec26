import { readFileSync, watch } from 'node:fs';

/**
 * Loaded ahead of the agent (`node --import`), it makes its clock differ from the machine's by the
 * milliseconds in CLOCK_OFFSET_FILE, immediately when they change. Timers and `performance.now()` are not
 * changed, as when a machine's clock is set.
 */
const file = process.env.CLOCK_OFFSET_FILE;

if (file && process.argv[1]?.endsWith('branchgate-agent.mjs')) {
  const machineTime = Date.now;
  let offset = 0;
  const read = () => {
    offset = Number(readFileSync(file, 'utf8'));
  };
  read();
  watch(file, read).unref();
  Date.now = () => machineTime() + offset;
  globalThis.Date = new Proxy(Date, {
    construct: (target, values, newTarget) =>
      Reflect.construct(target, values.length > 0 ? values : [target.now()], newTarget),
    apply: (target) => new target(target.now()).toString(),
  });
}
