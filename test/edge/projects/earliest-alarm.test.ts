import { beforeEach, expect, test, vi } from 'vitest';
import { EarliestAlarm } from '../../../edge/projects/earliest-alarm.ts';

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
  alarm.spent();
  alarm.wakeAt(900);
  expect(set).toEqual([300, 200, 900]);
});

test('a new instance does not postpone an existing alarm', async () => {
  await alarm.recall();
  alarm.wakeAt(600);
  alarm.wakeAt(400);
  expect(set).toEqual([400]);
});
