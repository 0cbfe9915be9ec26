import { expect, test } from 'vitest';
import { Drain, drainAt } from '../../../agent/upgrade/drain.ts';

const HOUR = 3_600_000;

test('a clone in progress ends before the agent, and no other one begins', async () => {
  const drain = new Drain();
  const clone = Promise.withResolvers<string>();
  const result = drain.run('branch.clone', () => clone.promise);
  const events: string[] = [];
  const drained = drain.begin(HOUR).then(() => events.push('drained'));
  await expect(drain.run('snapshot.take', async () => events.push('another clone'))).rejects.toMatchObject({
    code: 'HOST_BUSY',
  });
  expect(await drain.run('row.list', async () => 'rows')).toBe('rows');
  expect(events).toEqual([]);
  clone.resolve('cloned');
  expect(await result).toBe('cloned');
  await drained;
  expect(events).toEqual(['drained']);
});

test('a clone that fails, and one that takes too long, hold nothing up', async () => {
  const failing = new Drain();
  const failure = Promise.withResolvers<never>();
  const failed = failing.run('reset.clone', () => failure.promise);
  const drained = failing.begin(HOUR);
  failure.reject(new Error('no room'));
  await expect(failed).rejects.toThrow('no room');
  await drained;

  const endless = new Drain();
  endless.run('branch.clone', () => new Promise(() => {}));
  await endless.begin(1);
});

test('without a clone, nothing is waited for', async () => {
  await new Drain().begin(HOUR);
});

test('a second signal begins nothing, and does not end the process', () => {
  const before = process.listeners('SIGUSR2');
  let begun = 0;
  drainAt('SIGUSR2', async () => {
    begun += 1;
  });
  const [listener] = process.listeners('SIGUSR2').filter((other) => !before.includes(other));
  try {
    process.emit('SIGUSR2');
    expect(process.listeners('SIGUSR2')).toContain(listener);
    process.emit('SIGUSR2');
    expect(begun).toBe(1);
  } finally {
    if (listener) process.off('SIGUSR2', listener);
  }
});
