import { Api, FROM_LOOPBACK } from '../support/api.ts';
import { type Stack, UNLIMITED } from '../support/stack/stack.ts';
import { connectToClone, timeBareClone } from './bare-clone.ts';
import { filledMain } from './filled-main.ts';
import type { Report } from './report.ts';
import { addSample, medianRatio, runInterleaved, type Series, timed } from './rounds.ts';
import { onXfsStack, serverVersions } from './xfs-stack.ts';

const DISK_BYTES = 8 * 2 ** 30;
const MEGABYTES = 92;
const ROUNDS = 9;

const METHOD = `A main of about ${MEGABYTES + 8} MB on XFS with reflink in a loopback file, and a branch of it; everything else as \`npm start\` \
runs it, all on this machine. Interleaved, ${ROUNDS} rounds after a first one that is discarded: one bare clone of the branch without sessions \
(\`CREATE DATABASE … STRATEGY FILE_COPY\`, \`file_copy_method = clone\`); a checkpoint of the branch, until its 201; an undo to it, until its 200, \
which clones the checkpoint and keeps what the branch held; a trial of one statement on main, which nobody writes to, until its 200: a change of one row by \
the read-write login, with the row and schema differences and the drop of both copies. The parts of a trial are those of its report. The limits apply to the \
median of the ratios in each round.`;

const FINDINGS = `A checkpoint is a creation without a proof: beside the clone it reserves, stores and answers, in four processes that share two processors, \
as [a creation](../decisions/creation-speed.md) does, which takes 2.8 bare clones. An undo clones twice. Of a trial, in a run with marks of its own: two clones of 80 ms, \
53 for the session with the statement, 240 for the comparison (rows 200 and schemas 230, side by side on the two processors), 55 for the drop of both databases, and 70 in \
the gateway. Two clones and two drops alone are 2.9 bare clones, so the goal of 3 leaves no time for a comparison without spares of main.`;

/** Measures checkpoints, undo and trials. @param signal aborts it */
export const measureWayBack = (signal: AbortSignal): Promise<Report> =>
  onXfsStack(signal, DISK_BYTES, measure, UNLIMITED);

async function measure(stack: Stack): Promise<Report> {
  const api = new Api(stack.url, await stack.token());
  const session = await connectToClone(stack);
  const { project } = await filledMain(api, 'Way back', MEGABYTES);
  const path = `/api/v1/projects/${project.id}/branches`;
  const made = await api.post<{ id: string }>(path, { branch_name: 'work' }, FROM_LOOPBACK);
  const { database } = await api.credentials(project.id, made.body.id);
  const expecting = async (status: number, work: Promise<{ status: number; body: object }>) => {
    const response = await work;
    if (response.status !== status) throw new Error(JSON.stringify(response.body));
    return response.body;
  };
  const parts: Series = {};
  const trial = async () => {
    const body = { sql: 'update account set balance = balance + 1 where id = 1', role: 'read_write' };
    const report = (await expecting(200, api.post(`${path}/main/try`, body))) as Record<string, unknown>;
    if (report.outcome !== 'succeeded') throw new Error(JSON.stringify(report.error));
    addSample(parts, 'statements', Number(report.statements_ms));
    addSample(parts, 'on the host', Number(report.total_ms));
  };
  try {
    const times = await runInterleaved(
      ROUNDS,
      {
        'bare clone': () => timeBareClone(session, database),
        checkpoint: () => timed(() => expecting(201, api.post(`${path}/work/checkpoints`, {}))),
        undo: async () => {
          // The checkpoint of a round that runs backwards comes after it.
          await expecting(201, api.post(`${path}/work/checkpoints`, {}));
          return timed(() => expecting(200, api.post(`${path}/work/undo`, {})));
        },
        trial: () => timed(trial),
      },
      parts,
    );
    const ratioOf = (side: keyof typeof times) => medianRatio(times[side], times['bare clone']);
    return {
      title: 'Checkpoints, undo and trials',
      method: METHOD,
      setting: await serverVersions(stack),
      goals: [
        { name: 'a checkpoint ÷ a bare clone', measured: ratioOf('checkpoint'), limit: 1.3, unit: '×' },
        { name: 'an undo ÷ a bare clone', measured: ratioOf('undo'), limit: 2, unit: '×' },
        { name: 'a trial of one statement ÷ a bare clone', measured: ratioOf('trial'), limit: 3, unit: '×' },
      ],
      findings: FINDINGS,
      times: { Durations: times, 'Parts of a trial': parts },
    };
  } finally {
    await session.end();
  }
}
