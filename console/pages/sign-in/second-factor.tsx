import { useEffect, useRef } from 'react';
import { Button } from '../../components/button.tsx';
import { CopyButton } from '../../components/copy.tsx';
import { Note } from '../../components/feedback.tsx';
import { Check, Field } from '../../components/field.tsx';
import { SIGN_IN_TEXT } from '../../strings/sign-in.ts';
import { CodeField } from './first-factor.tsx';
import { StepForm, Way } from './form.tsx';
import { nextStep, type Step, signIn } from './steps.ts';

interface Props<Name extends Step['name']> {
  step: Extract<Step, { name: Name }>;
  go: (step: Step) => void;
}

interface SecondFactorProps extends Props<'second_factor'> {
  /** Does more with a code than to sign in. */
  verify?: (code: string) => Promise<Step>;
}

export function SecondFactorForm({ step, go, verify }: SecondFactorProps) {
  const { preAuth, method } = step;
  const isMailed = useRef(false);
  useEffect(() => {
    if (method !== 'email' || isMailed.current) return;
    isMailed.current = true;
    // A failure shows when the code is submitted; another one can be requested by signing in again.
    signIn.mailCode(preAuth).catch(() => {});
  }, [method, preAuth]);
  return (
    <StepForm
      go={go}
      action={SIGN_IN_TEXT.continue}
      submit={async (value) =>
        verify ? verify(value('code')) : nextStep(await signIn.verify(preAuth, value('code')))
      }
      more={
        !verify && (
          <Way go={go} to={{ name: 'recover', preAuth, method }}>
            {SIGN_IN_TEXT.lostFactor}
          </Way>
        )
      }
    >
      <p className="quiet">{SIGN_IN_TEXT.factorHints[method]}</p>
      <CodeField />
    </StepForm>
  );
}

export const RecoverForm = ({ step, go }: Props<'recover'>) => (
  <StepForm
    go={go}
    action={SIGN_IN_TEXT.continue}
    submit={async (value) =>
      nextStep(await signIn.recover(step.preAuth, value('code'), value('remove') === 'on'))
    }
    more={
      <Way go={go} to={{ ...step, name: 'second_factor' }}>
        {SIGN_IN_TEXT.back}
      </Way>
    }
  >
    <Field
      label={SIGN_IN_TEXT.recoveryCode}
      name="code"
      className="mono"
      autoComplete="off"
      placeholder="xxxx-xxxx-xxxx-xxxx"
      required
      autoFocus
    />
    <Check name="remove" label={SIGN_IN_TEXT.removeFactor} />
  </StepForm>
);

export function RecoveryCodes({ codes, go }: { codes: string[]; go: (step: Step) => void }) {
  const text = codes.join('\n');
  return (
    <div className="stack">
      <Note tone="warn">{SIGN_IN_TEXT.recoveryHint}</Note>
      <div className="codes">
        <ul>
          {codes.map((code) => (
            <li key={code}>
              <code>{code}</code>
            </li>
          ))}
        </ul>
        <CopyButton text={text} label={SIGN_IN_TEXT.copyCodes} />
      </div>
      <Button look="primary" className="wide" autoFocus onClick={() => go({ name: 'done' })}>
        {SIGN_IN_TEXT.storedCodes}
      </Button>
    </div>
  );
}
