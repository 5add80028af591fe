module fairlead/bench/clear

go 1.21
