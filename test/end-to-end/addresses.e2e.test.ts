import { afterAll, beforeAll, describe } from 'vitest';
import { CloudflareDns } from '../support/cloudflare-dns.ts';
import { freePorts, type Stack, startStack } from '../support/stack/stack.ts';
import { describeCallerNetworks, Surroundings } from './addresses/caller-networks.ts';
import { DOMAIN, describeProjectNames } from './addresses/project-names.ts';

/** A gateway with an address of each family, whose projects have names in a zone. */
let stack: Stack;
const ports = await freePorts();
const dns = new CloudflareDns();
const surroundings = new Surroundings(ports.GATEWAY_PORT ?? '');

beforeAll(async () => {
  await dns.start();
  await surroundings.start();
  stack = await startStack({
    env: {
      ...ports,
      ...dns.settings,
      ...surroundings.settings,
      DB_DOMAIN: DOMAIN,
      LIMIT_PUBLIC_PER_MINUTE: '100000',
    },
  });
});
afterAll(async () => {
  dns.stop();
  surroundings.stop();
  await stack?.stop();
});

describe('names of projects', () => describeProjectNames(() => stack, dns));

describe('networks of callers', () => describeCallerNetworks(() => stack, surroundings));
