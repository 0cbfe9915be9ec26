import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../eventually.ts';
import { AgentClock } from './agent-clock.ts';

/** Prints its time in three ways, and again for every line it reads. */
const PROGRAM = `
  const say = () => console.log(JSON.stringify([Date.now(), +new Date(), Date.parse(Date())]));
  say();
  process.stdin.on('data', say);`;

const folder = mkdtempSync(join(tmpdir(), 'branchgate-clock-'));
const agent = join(folder, 'branchgate-agent.mjs');
let clock: AgentClock;
beforeAll(() => {
  writeFileSync(agent, PROGRAM);
  clock = new AgentClock();
});
afterAll(() => {
  clock.remove();
  rmSync(folder, { recursive: true });
});

/** Minutes that all three are ahead of this process. */
const minutesAhead = (line: string) =>
  (JSON.parse(line) as number[]).map((moment) => Math.round((moment - Date.now()) / 60_000) + 0);

test("the agent's clock is as it is set, before it starts and while it runs", async () => {
  clock.set(-7200);
  const child = spawn(process.execPath, [agent], { env: clock.env, stdio: ['pipe', 'pipe', 'inherit'] });
  const next = async () => minutesAhead(String((await once(child.stdout, 'data'))[0]));
  try {
    expect(await next()).toEqual([-120, -120, -120]);
    clock.set(3600);
    // The change of the file reaches it asynchronously.
    await eventually(async () => {
      child.stdin.write('\n');
      expect(await next()).toEqual([60, 60, 60]);
    });
  } finally {
    child.kill();
  }
});

test("other programs have the machine's time", async () => {
  clock.set(3600);
  const other = join(folder, 'main.mjs');
  writeFileSync(other, PROGRAM);
  const ended = promisify(execFile)(process.execPath, [other], { env: clock.env });
  ended.child.stdin?.end();
  const { stdout } = await ended;
  expect(minutesAhead(stdout)).toEqual([0, 0, 0]);
});
