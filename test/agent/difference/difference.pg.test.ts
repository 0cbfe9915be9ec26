import { afterAll, beforeAll, describe } from 'vitest';
import { ComparingHost } from '../../support/host/host-differences.ts';
import { describeDifferences } from './differences.ts';
import { describeHistories } from './histories.ts';
import { describeSchemas } from './schema/compare-schemas.ts';
import { describeProofs } from './schema/proofs.ts';
import { describeTraps } from './traps.ts';

/** Comparisons of branches, with a project for each part. */
let host: ComparingHost;
beforeAll(async () => {
  host = await ComparingHost.start();
});
afterAll(() => host?.stop());

describe('differences', () => describeDifferences(async () => host));
describe('traps', () => describeTraps(() => host.withNewProject()));
describe('histories', () => describeHistories(() => host.withNewProject()));
describe('schemas', () => describeSchemas(() => host.servers));
describe('proven statements', () => describeProofs(() => host.servers));
