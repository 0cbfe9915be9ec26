import type { Api } from '../api.ts';
import { query } from '../database.ts';

/** A project in which every page of the console has something to show. @returns its ID and the URL of main */
export async function preparePages(api: Api): Promise<{ projectId: string; url: string }> {
  const project = await api.project('Pages');
  const projectId = project.id;
  await api.allow(projectId);
  await api.post(`/api/v1/projects/${projectId}/network-rules`, {
    cidr: '198.51.100.0/24',
    ttl_seconds: 7_100,
  });
  await api.branch(projectId, 'gone');
  await api.delete(`/api/v1/projects/${projectId}/branches/gone`);
  await api.post(`/api/v1/projects/${projectId}/branches/main/snapshots`, { name: 'before' });
  const url = (await api.credentials(projectId, 'main')).direct_url;
  await query(
    url,
    `create table item (id bigint primary key, name text not null, note text, price numeric, data bytea, doc jsonb, on_sale boolean);
     insert into item select n, 'item ' || n, case n % 3 when 0 then '' when 1 then null else 'text' end, n * 1.10,
       decode('00ff', 'hex'), '{"a": 1}', n % 2 = 0 from generate_series(1, 60) n;
     create table without_key (n int); insert into without_key values (1);
     create table pair (a int, b text, value text, primary key (a, b)); insert into pair values (1, 'x', 'old');
     create schema archive; create table archive.old (n int primary key); create table vacant (n int primary key);`,
  );
  await api.branch(projectId, 'changed');
  const { direct_url: changed } = await api.credentials(projectId, 'changed');
  await query(
    changed,
    `update item set name = 'renamed' where id = 1; delete from item where id = 2; alter table pair add more int`,
  );
  return { projectId, url };
}

/** A page by its name and path, with a text that shows that it has loaded. */
type ConsolePage = readonly [name: string, path: string, text: string | RegExp];

export function pagesOf(projectId: string): readonly ConsolePage[] {
  const inProject = (path: string) => `/projects/${projectId}${path}`;
  return [
    ['projects', '/', 'Pages'],
    ['new project', '/new', 'Storage quota in GiB'],
    ['branches', inProject(''), /of 10/],
    ['create branch', inProject('/create-branch'), 'Clone from'],
    ['connect', inProject('/branches/main/connect'), 'Passwords are hidden'],
    ['tables', inProject('/branches/main/tables?table=item'), 'item 1'],
    ['a table without a key', inProject('/branches/main/tables?table=without_key'), /no primary key/],
    ['sql', inProject('/branches/main/sql'), 'Runs statements'],
    ['monitoring', inProject('/branches/main/monitoring'), 'Compare with|Waiting|Active connections'],
    ['network rules', inProject('/network-rules'), /in 1 h \d+ min/],
    ['storage', inProject('/storage'), /never deleted|Waiting/],
    ['snapshots', inProject('/snapshots'), 'before'],
    ['recoveries', inProject('/recoveries'), /keeps no past/],
    ['masking', inProject('/masking'), 'Not covered|looks personal'],
    ['following', inProject('/following'), 'take over the data'],
    ['deleted branches', inProject('/deleted-branches'), 'gone'],
    ['sharing', inProject('/sharing'), 'Not shared'],
    ['difference', inProject('/branches/changed/difference?table=item'), 'renamed'],
    ['changes', inProject('/changes'), 'No changes yet'],
    ['jobs', inProject('/jobs'), 'Create project'],
    ['trusts', inProject('/trusts'), 'No workload is trusted'],
    ['settings', inProject('/settings'), 'Project ID'],
    ['audit', '/audit', 'project.created'],
    ['keys', '/keys', 'No API keys'],
    ['members', '/members', 'Invitations'],
    ['company sign-in', '/company', 'No identity provider'],
    ['account', '/account', 'Sessions'],
    ['second factor', '/account/second-factor', 'Confirm that it is you'],
    ['unknown', '/no/such/page', 'Not found'],
  ];
}

/** A name of the greatest length. */
const LONG_TABLE = 'item_with_a_name_of_sixty_three_characters_which_is_the_maximum';

/** The longest names and values that people have, in the project of the pages. */
export async function prepareLongValues(api: Api, projectId: string, url: string): Promise<void> {
  const path = `/api/v1/projects/${projectId}`;
  await api.patch(path, { name: 'Pages of a customer whose project has a name that is very long' });
  await api.branch(projectId, 'feature-1234-rename-columns-of-accounts', {
    labels: { team: 'the-team-that-owns-billing-and-invoices', pull_request: '1234567' },
  });
  await api.post(`${path}/network-rules`, {
    cidr: '2001:db8:ffff:ffff:ffff:ffff:ffff:ffff/128',
    description: 'The office in a city with a long name, second floor, behind the router of the landlord',
  });
  await query(
    url,
    `create table ${LONG_TABLE} (
       id bigint primary key, a_column_with_a_very_long_name_that_does_not_fit_into_its_width text, doc jsonb, tags text[]);
     insert into ${LONG_TABLE}
       select n, repeat('Long words without any spacesInBetween ', 60), jsonb_build_object('deep', jsonb_build_object('key', repeat('x', 500))),
         array_fill('tag'::text, array[40]) from generate_series(1, 30) n`,
  );
}

/** The page of the rows of `prepareLongValues`. */
export const longRows = (projectId: string): ConsolePage => [
  'long rows',
  `/projects/${projectId}/branches/main/tables?table=${LONG_TABLE}`,
  'Long words',
];
