import { useQuery } from '@tanstack/react-query';
import { Link, useParams } from '@tanstack/react-router';
import { type ReactNode, useEffect } from 'react';
import { branchesQuery } from '../data/resources.ts';
import { TEXT } from '../strings/common.ts';
import { Note } from './feedback.tsx';
import { HostAwayNote } from './host-away.tsx';

export const useParameters = () => useParams({ strict: false }) as { projectId?: string; branch?: string };

/** On the pages of `main`, that it can only be read while it follows a database elsewhere. */
function FollowingNote({ projectId }: { projectId: string }) {
  const main = useQuery(branchesQuery(projectId)).data?.find(({ branch_name }) => branch_name === 'main');
  if (main?.blocked?.reason !== 'following') return null;
  return (
    <Note>
      main follows a database elsewhere, so it can only be read.{' '}
      <Link to="/projects/$projectId/following" params={{ projectId }}>
        How far it is
      </Link>
    </Note>
  );
}

interface PageProps {
  title: ReactNode;
  /** For the tab of the browser, when the title is not plain text. */
  name?: string;
  about?: ReactNode;
  actions?: ReactNode;
  width?: 'narrow' | 'wide';
  children: ReactNode;
}

/** The content of a page: its title, what it is about, what can be done, and the rest. */
export function Page({ title, name, about, actions, width, children }: PageProps) {
  const { projectId, branch } = useParameters();
  const label = name ?? String(title);
  useEffect(() => {
    document.title = `${label} · ${TEXT.name}`;
  }, [label]);
  return (
    <main id="content" tabIndex={-1} className={branch === 'main' ? 'page on-main' : 'page'}>
      <div className={width ? `inner ${width}` : 'inner'}>
        <div className="page-head">
          <div className="grow">
            <h1>{title}</h1>
            {about && <p>{about}</p>}
          </div>
          {actions && <div className="row">{actions}</div>}
        </div>
        {projectId && <HostAwayNote projectId={projectId} />}
        {branch === 'main' && projectId && <FollowingNote projectId={projectId} />}
        {children}
      </div>
    </main>
  );
}
