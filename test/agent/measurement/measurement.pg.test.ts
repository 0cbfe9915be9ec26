import { afterAll, beforeAll, describe } from 'vitest';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { describeCpuSeconds } from './cpu.ts';
import { describeMeasurementLoop } from './measurement-loop.ts';
import { describeMeter } from './meter.ts';

/** Measurements of branches, with a project for each part. */
let servers: TestHost;
beforeAll(async () => {
  servers = await startHost();
});
afterAll(() => servers?.stop());
const host = () => servers;

describe('the meter', () => describeMeter(host));
describe('CPU seconds', () => describeCpuSeconds(host));
describe('the loop', () => describeMeasurementLoop(host));
