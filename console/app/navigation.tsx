import { useQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { Icon } from '../components/icon.tsx';
import { TEXT } from '../strings/common.ts';
import { branchesQuery, type Me } from './resources.ts';
import { mayAdminister } from './session.ts';

const CURRENT = { 'aria-current': 'page' } as const;
const exact = { exact: true, includeSearch: false };

export function ProjectNavigation({ projectId, branch }: { projectId: string; branch?: string | undefined }) {
  const branches = useQuery(branchesQuery(projectId)).data;
  const shown = branch ?? branches?.find(({ is_default }) => is_default)?.branch_name ?? 'main';
  const params = { projectId };
  const inBranch = { projectId, branch: shown };
  return (
    <>
      <div>
        <h2>{TEXT.nav.project}</h2>
        <ul>
          <li>
            <Link to="/projects/$projectId" params={params} activeOptions={exact} activeProps={CURRENT}>
              <Icon name="branch" /> {TEXT.nav.branches}
            </Link>
          </li>
          <li>
            <Link to="/projects/$projectId/network-rules" params={params} activeProps={CURRENT}>
              <Icon name="shield" /> {TEXT.nav.rules}
            </Link>
          </li>
          <li>
            <Link to="/projects/$projectId/storage" params={params} activeProps={CURRENT}>
              <Icon name="stack" /> {TEXT.nav.storage}
            </Link>
          </li>
          <li>
            <Link to="/projects/$projectId/jobs" params={params} activeProps={CURRENT}>
              <Icon name="clock" /> {TEXT.nav.jobs}
            </Link>
          </li>
          <li>
            <Link to="/projects/$projectId/trusts" params={params} activeProps={CURRENT}>
              <Icon name="lock" /> {TEXT.nav.trusts}
            </Link>
          </li>
          <li>
            <Link to="/projects/$projectId/settings" params={params} activeProps={CURRENT}>
              <Icon name="gear" /> {TEXT.nav.settings}
            </Link>
          </li>
        </ul>
      </div>
      <div>
        <h2>
          {TEXT.nav.branch} <span className={shown === 'main' ? 'mono main-name' : 'mono'}>{shown}</span>
        </h2>
        <ul>
          <li>
            <Link to="/projects/$projectId/branches/$branch/connect" params={inBranch} activeProps={CURRENT}>
              <Icon name="link" /> {TEXT.nav.connect}
            </Link>
          </li>
          <li>
            <Link to="/projects/$projectId/branches/$branch/tables" params={inBranch} activeProps={CURRENT}>
              <Icon name="table" /> {TEXT.nav.tables}
            </Link>
          </li>
          <li>
            <Link to="/projects/$projectId/branches/$branch/sql" params={inBranch} activeProps={CURRENT}>
              <Icon name="terminal" /> {TEXT.nav.sql}
            </Link>
          </li>
          <li>
            <Link
              to="/projects/$projectId/branches/$branch/monitoring"
              params={inBranch}
              activeProps={CURRENT}
            >
              <Icon name="graph" /> {TEXT.nav.monitoring}
            </Link>
          </li>
        </ul>
      </div>
    </>
  );
}

export const TenantNavigation = ({ me }: { me: Me }) => (
  <div>
    <h2 title={me.tenant_id ?? ''}>{TEXT.nav.tenant}</h2>
    <ul>
      <li>
        <Link to="/" activeOptions={exact} activeProps={CURRENT}>
          <Icon name="database" /> {TEXT.nav.projects}
        </Link>
      </li>
      {mayAdminister(me) && (
        <>
          <li>
            <Link to="/audit" activeProps={CURRENT}>
              <Icon name="list" /> {TEXT.nav.audit}
            </Link>
          </li>
          <li>
            <Link to="/keys" activeProps={CURRENT}>
              <Icon name="key" /> {TEXT.nav.keys}
            </Link>
          </li>
          <li>
            <Link to="/members" activeProps={CURRENT}>
              <Icon name="people" /> {TEXT.nav.members}
            </Link>
          </li>
        </>
      )}
    </ul>
  </div>
);
