import { expect } from 'vitest';
import { connect } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
import { describeAttacks } from '../support/neighbours/describe-attacks.ts';

/** Few enough that an attack reaches it soon; an empty database has some hundred files. */
const PROJECT_FILES = '4000';

describeAttacks(
  ['many projects', 'multixact members', 'many tables', 'sleeping autovacuum'],
  () => ({
    env: { PROJECT_FILES },
    // Autovacuum looks for work once a second instead of once a minute.
    prepare: async ({ state }) => {
      const session = await connectOnHost(socketsOf(state).postgres, 'branchgate');
      await session.query('ALTER SYSTEM SET autovacuum_naptime = 1');
      await session.query('SELECT pg_reload_conf()');
      await session.end();
    },
  }),
  async (name, { victim }) => {
    if (name !== 'sleeping autovacuum') return;
    // One session: a poll that connects each time reaches the limit of connection attempts.
    const session = await connect(victim.urls.direct);
    await session.query(
      'create table analysed (n integer); insert into analysed select generate_series(1, 500)',
    );
    await eventually(async () => {
      const { rows } = await session.query(
        "select from pg_stat_user_tables where relname = 'analysed' and last_autoanalyze is not null",
      );
      expect(rows).toHaveLength(1);
    });
    await session.end();
  },
);
