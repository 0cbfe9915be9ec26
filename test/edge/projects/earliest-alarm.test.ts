import { beforeEach, expect, test, vi } from 'vitest';
import { EarliestAlarm } from '../../../edge/projects/earliest-alarm.ts';

let set: number[];
let alarm: EarliestAlarm;

beforeEach(() => {
  set = [];
  const setAlarm = async (moment: number | Date) => {
    set.push(Number(moment));
  };
  alarm = new EarliestAlarm({ getAlarm: async () => 500, setAlarm });
  vi.useFakeTimers({ now: 0 });
  return () => vi.useRealTimers();
});

test('the earliest moment stands, and none before it has rung is put off', () => {
  for (const moment of [300, 400, 200, 200]) alarm.wakeAt(moment);
  vi.setSystemTime(250);
  alarm.wakeAt(900);
  expect(set).toEqual([300, 200]);
  alarm.spent();
  alarm.wakeAt(900);
  expect(set).toEqual([300, 200, 900]);
});

test('a fresh object keeps the alarm that it finds', async () => {
  await alarm.recall();
  alarm.wakeAt(600);
  alarm.wakeAt(400);
  expect(set).toEqual([400]);
});
