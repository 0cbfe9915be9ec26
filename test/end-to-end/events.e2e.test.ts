import { beforeAll, expect, inject, onTestFinished, test } from 'vitest';
import type { Api } from '../support/api.ts';
import { eventually } from '../support/eventually.ts';
import { ownerOf, tokenOf } from '../support/tenants.ts';
import { openEvents } from '../support/worker/event-client.ts';
import { startReceiver } from '../support/worker/webhook-receiver.ts';

let api: Api;
let project: string;

beforeAll(async () => {
  api = await ownerOf('events');
  project = (await api.project('Events')).id;
});

const open = async (tenant: string, projectId = project) =>
  openEvents({ url: inject('stack').url, token: await tokenOf({ tenant }) }, projectId);

/** A webhook of the tenant for all its projects. */
async function webhookOf(owner: Api) {
  const receiver = await startReceiver();
  const { body } = await owner.post<{ id: string; secret: string }>('/api/v1/webhooks', {
    url: receiver.url,
    events: ['branch.changed', 'network_rule.changed'],
  });
  receiver.verifyWith(body.secret);
  onTestFinished(async () => {
    await owner.delete(`/api/v1/webhooks/${body.id}`);
    await receiver.stop();
  });
  return receiver;
}

test('a branch reports its life on a real host, on a stream and to a webhook of its tenant alone', async () => {
  const other = await ownerOf('other-events');
  const theirs = (await other.project('Theirs')).id;
  const receiver = await webhookOf(api);
  const othersReceiver = await webhookOf(other);
  const stream = await open('events');
  const othersStream = await open('other-events', theirs);
  expect((await open('other-events')).response.status).toBe(404);

  const { id } = await api.branch(project, 'lives');
  await eventually(async () => expect(stream.statuses('job.changed').at(-1)).toBe('succeeded'));
  await api.delete(`/api/v1/projects/${project}/branches/${id}`);
  const life = ['creating', 'active', 'deleted'];
  await eventually(async () => {
    expect(stream.statuses('branch.changed')).toEqual(life);
    expect(stream.statuses('network_rule.changed')).toEqual(['pending', 'applied', 'deleted']);
  });
  // A delivery whose response was late is repeated with the same id.
  const events = () => new Map(receiver.received.map(({ id, event }) => [id, event]));
  await eventually(async () => expect(events().size).toBe(6));
  const delivered = [...events().values()].filter(({ type }) => type === 'branch.changed');
  expect(delivered.map(({ data }) => data.status).sort()).toEqual(life.toSorted());
  expect(receiver.invalid).toEqual([]);
  expect(othersReceiver.received).toEqual([]);
  expect(othersStream.changes().filter(({ data }) => data.project_id !== theirs)).toEqual([]);
});
