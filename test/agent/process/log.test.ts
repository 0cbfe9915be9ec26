import { beforeEach, expect, test, vi } from 'vitest';
import { TroubleLog } from '../../../agent/process/log.ts';

const log = vi.fn();
let now = 0;
let troubles: TroubleLog;

beforeEach(() => {
  log.mockClear();
  now = 0;
  troubles = new TroubleLog(log, () => now);
});

const report = (reason: unknown, subject = 'server') =>
  troubles.report('failed', subject, reason, { subject });
const logged = () => log.mock.calls.map(([, { reason }]) => reason);

test('a reason is logged when it appears and then once a minute', () => {
  for (; now < 120_000; now += 1_000) report(new Error('away'));
  expect(logged()).toEqual(['away', 'away']);
  expect(log).toHaveBeenCalledWith('failed', { subject: 'server', reason: 'away' });
});

test('another reason, or the same with another subject, is logged as well', () => {
  for (const reason of ['away', 'full', 'away', 'full']) report(reason);
  report('away', 'other');
  expect(logged()).toEqual(['away', 'full', 'away']);
});

test('a trouble that returns after it was cleared is logged again', () => {
  report('away');
  expect([troubles.clear('server'), troubles.clear('server')]).toEqual([true, false]);
  report('away');
  report('away', 'other');
  expect([troubles.clearAll(), troubles.clearAll()]).toEqual([true, false]);
  expect(logged()).toEqual(['away', 'away', 'away']);
});
