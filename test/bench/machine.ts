import { cpus, loadavg, release, totalmem, type } from 'node:os';

/** What figures are worth nothing without. */
export function describeMachine(): Record<string, string> {
  const [cpu] = cpus();
  return {
    date: new Date().toISOString().slice(0, 10),
    processor: `${cpus().length} × ${cpu?.model.trim()}`,
    memory: `${Math.round(totalmem() / 2 ** 30)} GiB`,
    system: `${type()} ${release()}`,
    // Well above 0: others were at work, and what was measured is them as well.
    'load at the beginning': loadavg()[0]?.toFixed(1) ?? '',
    node: process.version,
  };
}
