// The declarations alone, used as a program would: no function is defined here, no warning is given.
#include "gemma3.h"

extern g3_result use_declarations(const g3_model_desc *desc, g3_error *err);
g3_result use_declarations(const g3_model_desc *desc, g3_error *err)
{
    g3_model *m = g3_model_open(desc, err);
    g3_model_close(m);
    return m ? G3_OK : err->code;
}
