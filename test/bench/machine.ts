import { cpus, loadavg, release, totalmem, type } from 'node:os';

/** The machine that the results depend on. */
export function describeMachine(): Record<string, string> {
  const [cpu] = cpus();
  return {
    date: new Date().toISOString().slice(0, 10),
    processor: `${cpus().length} × ${cpu?.model.trim()}`,
    memory: `${Math.round(totalmem() / 2 ** 30)} GiB`,
    system: `${type()} ${release()}`,
    // A value well above 0 means that other processes affected the measurement.
    'load at start': loadavg()[0]?.toFixed(1) ?? '',
    node: process.version,
  };
}
