import { expect, test } from 'vitest';
import { SchemaReadings } from '../../../agent/changes/schema-readings.ts';

/** Readings that end when the test says so. */
function stage() {
  const readings = new SchemaReadings();
  const running: (() => void)[] = [];
  const read = () => new Promise<string>((resolve) => running.push(() => resolve(`${running.length}`)));
  const turn = () => new Promise((resolve) => setImmediate(resolve));
  return { readings, running, read, turn };
}

test('calls for one database share the reading after the present one', async () => {
  const { readings, running, read, turn } = stage();
  const first = readings.shared('p', 'main', read);
  await turn();
  const later = Array.from({ length: 1000 }, () => readings.shared('p', 'main', read));
  await turn();
  expect(running).toHaveLength(1);
  running[0]?.();
  expect(await first).toBe('1');
  await turn();
  expect(running).toHaveLength(2);
  running[1]?.();
  expect(new Set(await Promise.all(later))).toEqual(new Set(['2']));
});

test('three of a project and six of a host read, and each that ends leaves its place', async () => {
  const { readings, running, read, turn } = stage();
  const of = (project: string) => readings.alone(project, read);
  const admitted = [of('a'), of('a'), of('a'), of('b'), of('b'), readings.shared('c', 'main', read)];
  await turn();
  await expect(of('a')).rejects.toMatchObject({ code: 'PROJECT_BUSY' });
  await expect(of('d')).rejects.toMatchObject({ code: 'HOST_BUSY' });
  for (const end of running) end();
  await Promise.all(admitted);
  const next = of('d');
  await turn();
  running.at(-1)?.();
  await next;
});
