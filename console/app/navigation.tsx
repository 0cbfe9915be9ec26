import { useQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { Icon } from '../components/icon.tsx';
import { TEXT } from '../strings/common.ts';
import { BRANCH_PAGES, PROJECT_PAGES, seenBy, TENANT_PAGES } from './pages.ts';
import { branchesQuery, type Me } from './resources.ts';

const CURRENT = { 'aria-current': 'page' } as const;
/** The first page of each list is the beginning of the addresses of others. */
const exactly = (index: number) => ({ exact: index === 0, includeSearch: false });

interface ProjectNavigationProps {
  projectId: string;
  branch?: string | undefined;
  me: Me;
}

export function ProjectNavigation({ projectId, branch, me }: ProjectNavigationProps) {
  const branches = useQuery(branchesQuery(projectId)).data;
  const shown = branch ?? branches?.find(({ is_default }) => is_default)?.branch_name ?? 'main';
  return (
    <>
      <div>
        <h2>{TEXT.nav.project}</h2>
        <ul>
          {seenBy(PROJECT_PAGES, me).map(([to, icon, name], index) => (
            <li key={to}>
              <Link to={to} params={{ projectId }} activeOptions={exactly(index)} activeProps={CURRENT}>
                <Icon name={icon} /> {name}
              </Link>
            </li>
          ))}
        </ul>
      </div>
      <div>
        <h2>
          {TEXT.nav.branch} <span className={shown === 'main' ? 'mono main-name' : 'mono'}>{shown}</span>
        </h2>
        <ul>
          {BRANCH_PAGES.map(([to, icon, name]) => (
            <li key={to}>
              <Link to={to} params={{ projectId, branch: shown }} activeProps={CURRENT}>
                <Icon name={icon} /> {name}
              </Link>
            </li>
          ))}
        </ul>
      </div>
    </>
  );
}

export const TenantNavigation = ({ me }: { me: Me }) => (
  <div>
    <h2 title={me.tenant_id ?? ''}>{TEXT.nav.tenant}</h2>
    <ul>
      {seenBy(TENANT_PAGES, me).map(([to, icon, name], index) => (
        <li key={to}>
          <Link to={to} activeOptions={exactly(index)} activeProps={CURRENT}>
            <Icon name={icon} /> {name}
          </Link>
        </li>
      ))}
    </ul>
  </div>
);
