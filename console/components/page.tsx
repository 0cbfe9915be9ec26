import { useParams } from '@tanstack/react-router';
import { type ReactNode, useEffect } from 'react';
import { TEXT } from '../strings/common.ts';

export const useParameters = () => useParams({ strict: false }) as { projectId?: string; branch?: string };

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
  const { branch } = useParameters();
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
        {children}
      </div>
    </main>
  );
}
