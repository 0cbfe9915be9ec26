import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Api, type ProjectBody } from '../support/api.ts';
import { eventually } from '../support/eventually.ts';
import { freePort } from '../support/free-port.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { LinkProxy } from '../support/stack/link-proxy.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

interface Rule {
  id: string;
  cidr: string;
  status: string;
}

let proxy: LinkProxy;
let stack: Stack;
let api: Api;
let project: ProjectBody;

beforeAll(async () => {
  const GATEWAY_PORT = String(await freePort());
  proxy = await LinkProxy.start(`http://127.0.0.1:${GATEWAY_PORT}`);
  stack = await startStack({ restarts: false, env: { GATEWAY_PORT, GATEWAY_URL: proxy.url } });
  api = new Api(stack.url, await stack.token());
  project = await api.project('Rules by key');
});
afterAll(async () => {
  await stack?.stop();
  await proxy?.stop();
});

const path = () => `/api/v1/projects/${project.id}/network-rules`;
const post = (key: string, cidr: string) => api.post<Rule>(path(), { cidr }, { 'Idempotency-Key': key });
const isReplay = ({ headers }: { headers: Headers }) => headers.get('idempotency-replayed') === 'true';

async function rulesOf(cidr: string): Promise<Rule[]> {
  const { body } = await api.get<{ network_rules: Rule[] }>(path());
  return body.network_rules.filter((rule) => rule.cidr === cidr);
}

describe.runIf(IS_NIGHTLY)('a network rule under an Idempotency-Key', () => {
  test('is created once; a repetition gets the first response', async () => {
    const first = await post('once', '203.0.113.0/24');
    const again = await post('once', '203.0.113.0/24');
    expect(first).toMatchObject({ status: 201, body: { status: 'applied' } });
    expect(isReplay(first)).toBe(false);
    expect(again).toMatchObject({ status: 201, body: first.body });
    expect(isReplay(again)).toBe(true);
    expect(await rulesOf('203.0.113.0/24')).toEqual([first.body]);
  });

  test('is refused with another body, and leaves the key free after a failure', async () => {
    await post('body', '203.0.114.0/24');
    expect(await post('body', '203.0.115.0/24')).toMatchObject({
      status: 422,
      body: { error: 'IDEMPOTENCY_KEY_REUSED' },
    });
    expect(await rulesOf('203.0.115.0/24')).toEqual([]);
    expect(await post('free', '203.0.114.0/24')).toMatchObject({
      status: 409,
      body: { error: 'RULE_EXISTS' },
    });
    expect((await post('free', '203.0.115.0/24')).status).toBe(201);
  });

  test('is created once by concurrent requests', async () => {
    const responses = await Promise.all(Array.from({ length: 10 }, () => post('crowd', '203.0.116.0/24')));
    const [rule] = await rulesOf('203.0.116.0/24');
    expect(await rulesOf('203.0.116.0/24')).toHaveLength(1);
    for (const { status, body } of responses) {
      if (status === 201) expect(body.id).toBe(rule?.id);
      else expect([status, (body as { error?: string }).error]).toEqual([409, 'IDEMPOTENCY_IN_FLIGHT']);
    }
    expect(responses.filter(({ status }) => status === 201).length).toBeGreaterThanOrEqual(1);
    expect((await post('crowd', '203.0.116.0/24')).body).toMatchObject({ id: rule?.id, status: 'applied' });
  });

  test('is pending when the agent dies meanwhile, also in a repetition', async () => {
    const called = proxy.hold({ method: 'access.apply', side: 'call' });
    const pending = post('agent', '203.0.117.0/24');
    await called;
    await stack.kill('agent');
    proxy.letGo();
    const first = await pending;
    expect(first).toMatchObject({ status: 201, body: { status: 'pending' } });
    const again = await post('agent', '203.0.117.0/24');
    expect([isReplay(again), again.body]).toEqual([true, first.body]);
    expect(await rulesOf('203.0.117.0/24')).toEqual([first.body]);
    await stack.start('agent');
    await stack.untilReady();
    await eventually(async () =>
      expect(await rulesOf('203.0.117.0/24')).toEqual([{ ...first.body, status: 'applied' }]),
    );
  });

  test('gets a pending response after the gateway died meanwhile', async () => {
    const called = proxy.hold({ method: 'access.apply', side: 'reply' });
    const pending = post('gateway', '203.0.118.0/24').catch(() => null);
    await called;
    // What is held may be a late reply about the rule before.
    await eventually(async () => expect(await rulesOf('203.0.118.0/24')).toHaveLength(1));
    await stack.kill('gateway');
    expect(await pending).toBeNull();
    proxy.letGo();
    // The gateway would apply the rule again before the repetition: by its alarm, and when the host links up.
    for (let calls = 0; calls < 5; calls += 1) void proxy.hold({ method: 'access.apply', side: 'call' });
    await stack.start('gateway');
    const again = await post('gateway', '203.0.118.0/24');
    expect(again).toMatchObject({ status: 201, body: { status: 'pending' } });
    expect(isReplay(again)).toBe(true);
    proxy.letGo();
    await stack.untilReady();
    await eventually(async () =>
      expect(await rulesOf('203.0.118.0/24')).toEqual([{ ...again.body, status: 'applied' }]),
    );
  });
});
