import { expect, test } from 'vitest';
import { parseProcessTimes, readProcessTimes } from '../../../agent/measurement/server-sample.ts';

test('parses the fields of proc(5) with any program name', () => {
  const stat = '42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 150 50 1000 500 20 0 1 0 987 1 1';
  expect(parseProcessTimes(stat)).toEqual({ parent: 7, cpu: 2, childrenCpu: 15, startedAt: 987 });
});

test('reads the times of this process', () => {
  const times = readProcessTimes(process.pid);
  expect(times?.parent).toBe(process.ppid);
  const { user, system } = process.cpuUsage();
  expect(times?.cpu).toBeGreaterThan((user + system) / 1e6 - 0.5);
  expect(times?.cpu).toBeLessThanOrEqual((user + system) / 1e6);
});

test('returns null for a process that has ended', () => {
  expect(readProcessTimes(2 ** 22 + 1)).toBeNull();
});
