import { execFile } from 'node:child_process';
import { appendFileSync, chownSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { hostFolder } from '../../dev/stack/host-folder.ts';
import { serverUser } from '../../dev/stack/os-user.ts';
import { Api, type BranchBody, type ProjectBody } from '../support/api.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

const run = promisify(execFile);

/** What pgBackRest does, by PostgreSQL's low-level interface: the same data after the restore. */
class Backup {
  readonly #stack: Stack;
  readonly #data: string;
  readonly #copy: string;
  readonly #archive: string;

  constructor(stack: Stack) {
    this.#stack = stack;
    this.#data = hostFolder(stack.state.host_dir, {}).data;
    this.#copy = `${this.#data}.backup`;
    this.#archive = `${this.#data}.archive`;
  }

  async onHost<T>(action: (session: Awaited<ReturnType<typeof connectOnHost>>) => Promise<T>): Promise<T> {
    const session = await connectOnHost(socketsOf(this.#stack.state).postgres, 'branchgate');
    return action(session).finally(() => session.end());
  }

  /** Makes PostgreSQL archive its WAL, which needs a restart. */
  async archiveWal(): Promise<void> {
    this.#folder(this.#archive);
    await this.onHost(async (session) => {
      await session.query('alter system set archive_mode = on');
      await session.query(`alter system set archive_command = 'cp %p ${this.#archive}/%f'`);
    });
    await this.#stack.kill('agent');
    await this.#stack.kill('postgres');
    await this.#stack.start('postgres');
    await this.#stack.start('agent');
    await this.#stack.untilReady();
  }

  async take(): Promise<void> {
    await this.onHost(async (session) => {
      await session.query("select pg_backup_start('drill', fast => true)");
      // A file that disappears meanwhile is as it should be: replaying the WAL removes it too.
      await run('cp', ['--archive', '--reflink=auto', this.#data, this.#copy]).catch((error: Error) => {
        if (!/No such file or directory/.test(error.message)) throw error;
      });
      const { rows } = await session.query<{ labelfile: string }>('select labelfile from pg_backup_stop()');
      this.#file(join(this.#copy, 'backup_label'), rows[0]?.labelfile ?? '');
    });
    for (const name of ['postmaster.pid', 'postmaster.opts', 'pg_wal'])
      rmSync(join(this.#copy, name), { recursive: true, force: true });
    this.#folder(join(this.#copy, 'pg_wal'));
    this.#folder(join(this.#copy, 'pg_wal/archive_status'));
  }

  /** The time of PostgreSQL, after all that is committed. */
  now = () =>
    this.onHost(async (session) => {
      const { rows } = await session.query<{ at: string }>('select clock_timestamp()::text as at');
      return rows[0]?.at ?? '';
    });

  async untilArchived(): Promise<void> {
    await this.onHost(async (session) => {
      const { rows } = await session.query<{ segment: string }>(
        'select pg_walfile_name(pg_switch_wal()) as segment',
      );
      await eventually(async () => {
        const archiver = await session.query('select last_archived_wal as segment from pg_stat_archiver');
        expect(archiver.rows[0].segment >= (rows[0]?.segment ?? '')).toBe(true);
      }, 60);
    });
  }

  /** The disk is lost, and the host is restored as it was at a time. */
  async restore(at: string): Promise<void> {
    await this.#stack.kill('agent');
    await this.#stack.kill('postgres');
    rmSync(this.#data, { recursive: true });
    await run('mv', [this.#copy, this.#data]);
    appendFileSync(
      join(this.#data, 'postgresql.auto.conf'),
      `restore_command = 'cp ${this.#archive}/%f %p'\nrecovery_target_time = '${at}'\nrecovery_target_action = 'promote'\n`,
    );
    this.#file(join(this.#data, 'recovery.signal'), '');
    await this.#stack.start('postgres');
    await this.#stack.start('agent');
    await this.#stack.untilReady();
  }

  removeArchive() {
    for (const folder of [this.#archive, this.#copy]) rmSync(folder, { recursive: true, force: true });
  }

  #file(path: string, text: string) {
    writeFileSync(path, text);
    chownSync(path, serverUser().uid, serverUser().gid);
  }

  #folder(path: string) {
    mkdirSync(path, { mode: 0o700 });
    chownSync(path, serverUser().uid, serverUser().gid);
  }
}

describe.runIf(IS_NIGHTLY)('a host whose disk was lost', () => {
  let stack: Stack;
  let api: Api;
  let backup: Backup;
  let project: ProjectBody;
  let path: string;

  beforeAll(async () => {
    stack = await startStack({ restarts: false });
    api = new Api(stack.url, await stack.token());
    project = await api.project('Restored');
    path = `/api/v1/projects/${project.id}`;
    await api.allow(project.id);
    backup = new Backup(stack);
    await backup.archiveWal();
  });
  afterAll(async () => {
    backup?.removeArchive();
    await stack?.stop();
  });

  const urlOf = async (branch: string) => (await api.credentials(project.id, branch)).direct_url ?? '';
  const insert = async (branch: string, note: string) =>
    query(await urlOf(branch), 'insert into note values ($1)', [note]);
  const notes = async (branch: string) =>
    (await query<{ note: string }>(await urlOf(branch), 'select note from note order by 1')).map(
      ({ note }) => note,
    );
  /** It can be restored when the job of its deletion has ended. */
  const restoreBranch = (id: string) =>
    eventually(async () => {
      const { status, body } = await api.post<BranchBody>(`${path}/branches/${id}/restore`, {});
      expect([status, body.status]).toEqual([200, 'active']);
    }, 60);
  const databasesLike = (pattern: string) =>
    backup.onHost(async (session) => {
      const { rows } = await session.query<{ name: string }>(
        'select datname as name from pg_database where datname like $1',
        [pattern],
      );
      return rows.map(({ name }) => name);
    });
  const eventsOf = (event: string) =>
    readFileSync(join(devFolder(stack.devDir).logs, 'gateway.log'), 'utf8')
      .split('\n')
      .filter((line) => line.includes(`"event":"${event}"`));
  const statuses = async (id = project.id) => {
    const { body } = await api.get<{ branches: BranchBody[] }>(`/api/v1/projects/${id}/branches`);
    return Object.fromEntries(body.branches.map(({ branch_name, status }) => [branch_name, status]));
  };

  test('is restored to a time: each branch has the data of that time, or has failed, and nothing else is lost', async () => {
    await query(
      await urlOf('main'),
      "create table note (note text); insert into note values ('1 before the backup')",
    );
    for (const name of ['kept', 'purged']) await api.branch(project.id, name);
    const undeleted = await api.branch(project.id, 'undeleted');
    const returned = await api.branch(project.id, 'returned');
    await backup.take();

    for (const branch of ['main', 'kept', 'undeleted']) await insert(branch, '2 before the time');
    await api.branch(project.id, 'made-before');
    expect(await api.delete(`${path}/branches/returned`)).toMatchObject({ status: 202 });
    await eventually(async () => expect(await databasesLike('bgsnap_%')).toHaveLength(1));
    const at = await backup.now();

    await insert('main', '3 after the time');
    await api.branch(project.id, 'made-after');
    await restoreBranch(returned.id);
    const late = await api.project('Late');
    expect(await api.delete(`${path}/branches/undeleted`)).toMatchObject({ status: 202 });
    expect(await api.delete(`${path}/branches/purged?purge=true`)).toMatchObject({ status: 202 });
    const old = await urlOf('kept');
    const rotated = await api.post(`${path}/branches/kept/credentials/rotate`, {});
    expect(rotated.status).toBe(200);
    await eventually(async () =>
      expect(Object.keys(await statuses()).sort()).toEqual([
        ...['kept', 'made-after', 'made-before', 'main', 'returned'],
      ]),
    );
    await backup.untilArchived();
    await backup.restore(at);

    await eventually(
      async () =>
        expect(await statuses()).toEqual({
          main: 'active',
          kept: 'active',
          'made-before': 'active',
          'made-after': 'failed',
          returned: 'failed',
        }),
      60,
    );
    const main = ['1 before the backup', '2 before the time'];
    expect(await notes('main')).toEqual(main);
    expect(await notes('made-before')).toEqual(main);

    // The passwords that were replaced after the time are in effect, and the older ones are not.
    await eventually(async () => expect(await notes('kept')).toEqual(main), 60);
    await expect(query(old, 'select 1')).rejects.toThrow('password authentication failed');

    const { body } = await api.get<{ audit_events: { name: string }[] }>(
      '/api/v1/audit-events?name=branch.lost',
    );
    expect(body.audit_events).toHaveLength(3);
    expect(await statuses(late.id)).toEqual({ main: 'failed' });

    // The deletion after the time can be undone, although the host was restored to before it.
    await restoreBranch(undeleted.id);
    expect(await notes('undeleted')).toEqual(main);

    // What was purged is on the restored host again, and goes again.
    await eventually(async () => expect(await databasesLike('%_br_purged')).toEqual([]), 60);
    // The branch that was restored after the time is lost, so its kept database is not dropped as a leftover.
    await eventually(async () => expect(await databasesLike('bgsnap_%')).toHaveLength(1), 60);
    expect(eventsOf('reconcile.strange_snapshot')).not.toEqual([]);
    expect(eventsOf('reconcile.drop_snapshot')).toEqual([]);
    expect((await api.branch(project.id, 'next')).status).toBe('active');
  });
});
