import { beforeEach, expect, test, vi } from 'vitest';
import { EarliestAlarm } from '../../../edge/coordinator/alarm.ts';

let set: number[];
let alarm: EarliestAlarm;

beforeEach(() => {
  set = [];
  const setAlarm = async (timestamp: number | Date) => {
    set.push(Number(timestamp));
  };
  alarm = new EarliestAlarm({ getAlarm: async () => 500, setAlarm });
  vi.useFakeTimers({ now: 0 });
  return () => vi.useRealTimers();
});

test('the earliest timestamp is set, and a due alarm is not postponed before it fires', () => {
  for (const timestamp of [300, 400, 200, 200]) alarm.wakeAt(timestamp);
  vi.setSystemTime(250);
  alarm.wakeAt(900);
  expect(set).toEqual([300, 200]);
  alarm.fired();
  alarm.wakeAt(900);
  expect(set).toEqual([300, 200, 900]);
});

test('a new instance does not postpone an existing alarm', async () => {
  await alarm.recall();
  alarm.wakeAt(600);
  alarm.wakeAt(400);
  expect(set).toEqual([400]);
});

test('an alarm that guards a write is set again if an earlier one fires', () => {
  alarm.wakeAt(100);
  vi.setSystemTime(90);
  alarm.guard(20_090);
  vi.setSystemTime(100);
  alarm.fired();
  expect(set).toEqual([100, 20_090]);
  vi.setSystemTime(20_090);
  alarm.fired();
  expect(set).toEqual([100, 20_090]);
});

test('nothing is set again after the storage was deleted', () => {
  alarm.guard(20_000);
  alarm.deleted();
  alarm.wakeAt(50);
  alarm.fired();
  expect(set).toEqual([20_000, 50]);
});
